"""Studies: a declared grid, run anywhere, gives records."""

from offtrace.studies.declaration import shipped
from offtrace.studies.declaration_checks import DeclarationError, StudyError
from offtrace.studies.named_environments import register_environment
from offtrace.studies.status import Status
from offtrace.studies.study import Study

__all__ = [
    "DeclarationError",
    "Status",
    "Study",
    "StudyError",
    "load",
    "register_environment",
    "shipped",
]

load = Study.load
