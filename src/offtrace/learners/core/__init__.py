"""The compiled loop of the learners."""
