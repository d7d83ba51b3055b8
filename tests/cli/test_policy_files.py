"""Policies in .npz files, damaged anywhere: what is read is what was written, or one error names the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offtrace.cli.log_policies import load_policy


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed], ids=["stored", "compressed"])
def test_flipped_bits(write: object, tmp_path: Path) -> None:
    assert callable(write)
    path, pi = tmp_path / "policy.npz", np.full((3, 4), 0.25)
    write(path, probabilities=pi, states=np.array(["a", "b", "c"]), actions=np.arange(4))
    whole, refused = path.read_bytes(), 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        try:
            found = load_policy(str(path))
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
            refused += 1
        else:
            np.testing.assert_array_equal(found.policy, pi)
            assert found.states in (("a", "b", "c"), 3)  # where a name in the file was changed, it has another array
            assert found.actions in ((0, 1, 2, 3), 4)
    assert refused > len(whole) // 2


def test_a_policy_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="policy"):
        load_policy(str(tmp_path / "policy.npz"))
