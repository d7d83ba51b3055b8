"""Learning methods, a short file for each: what is kept for each weight, and what one step does with it."""
