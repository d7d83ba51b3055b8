"""Studies: a declared grid, run anywhere, gives records."""

from offtrace._shared.extras import from_extra

with from_extra("studies", "offtrace.studies needs"):
    from offtrace.studies.environments import register_environment
    from offtrace.studies.fields import DeclarationError, StudyError
    from offtrace.studies.spec import shipped
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
