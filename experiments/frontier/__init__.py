"""Does contraction for its variance predict how fast a rule learns?"""
