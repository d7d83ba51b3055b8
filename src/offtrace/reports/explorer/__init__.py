"""The explorer: one page on which a person sees what a trace does. Every rule on it is printed from its own lines."""
