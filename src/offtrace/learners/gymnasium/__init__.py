"""Learners in Gymnasium environments.

Observations become numbers (Discrete, MultiDiscrete, MultiBinary, and Tuple or Dict of these) or tiles (Box). A vector
environment feeds one learner with all its copies. Every learner has an environment of its own, seeded from the learner's
seed when it begins, and a second one for evaluation episodes, so that evaluating a learner does not change it.

Gymnasium is imported only here, when it is asked for: the extra `gymnasium`.
"""
