"""Studies: a declared grid, run anywhere, gives records."""

from offtrace.studies.declaration import shipped
from offtrace.studies.declaration_checks import DeclarationError, StudyError
from offtrace.studies.named_environments import register_environment
from offtrace.studies.stale.token_tasks import TokenTask, register_token_task
from offtrace.studies.status import Status
from offtrace.studies.study import Study

__all__ = [
    "DeclarationError",
    "Status",
    "Study",
    "StudyError",
    "TokenTask",
    "load",
    "register_environment",
    "register_token_task",
    "shipped",
]

load = Study.load
