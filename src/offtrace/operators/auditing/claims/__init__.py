"""What the paper says, each statement with the computation that decides it, in the order of the audit's table.

`common` holds what they share; each of the other modules holds the claims of one subject.
"""

from offtrace.operators.auditing.claims import algorithms, conclusion, control, online, policy_evaluation, proofs
from offtrace.operators.auditing.claims.common import Claim, Found, claims_of, on_battery

CLAIMS: list[Claim] = [
    claim
    for subject in (policy_evaluation, algorithms, control, proofs, online, conclusion)
    for claim in claims_of(subject)
]

__all__ = ["CLAIMS", "Claim", "Found", "on_battery"]
