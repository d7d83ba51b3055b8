from collections.abc import Iterator

import pytest

from studies.forked import Forks


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Commands in processes of their own."""
    made = Forks(tmp_path_factory.mktemp("forks"))
    yield made
    made.close()
