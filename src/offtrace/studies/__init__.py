"""Studies: a declared grid, run anywhere, gives records."""

from offtrace._shared.extras import install

try:
    from offtrace.studies.environments import register_environment
    from offtrace.studies.fields import DeclarationError, StudyError
    from offtrace.studies.spec import shipped
    from offtrace.studies.status import Status
    from offtrace.studies.study import Study
except ModuleNotFoundError as error:
    if (error.name or "").startswith("offtrace"):
        raise
    raise ImportError(f"offtrace.studies needs {error.name}: {install('studies')}") from None

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
