"""Finite MDPs, policies as arrays [S, A], and a gallery: the MDPs of the literature and those that refute."""

from offtrace.mdps.counterexamples import (
    alternating,
    baird_star,
    lemma_2,
    one_state_two_actions,
    powers_of_two,
    q_lambda_tight,
    switch_or_stay,
    w_to_2w,
)
from offtrace.mdps.gallery import (
    bifurcation,
    cliff,
    collision,
    collision_features,
    garnet,
    random_walk,
    random_walk_values,
)
from offtrace.mdps.mdp import MDP
from offtrace.mdps.policy_tables import check_policy, epsilon_greedy, greedy, mixture, random_policy, softmax, uniform
from offtrace.mdps.toy_text import from_gymnasium

__all__ = [
    "MDP",
    "alternating",
    "baird_star",
    "bifurcation",
    "check_policy",
    "cliff",
    "collision",
    "collision_features",
    "epsilon_greedy",
    "from_gymnasium",
    "garnet",
    "greedy",
    "lemma_2",
    "mixture",
    "one_state_two_actions",
    "powers_of_two",
    "q_lambda_tight",
    "random_policy",
    "random_walk",
    "random_walk_values",
    "softmax",
    "switch_or_stay",
    "uniform",
    "w_to_2w",
]
