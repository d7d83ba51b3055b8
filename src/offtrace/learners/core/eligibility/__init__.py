"""The eligibility vector of one learner, compiled: see `kept`."""
