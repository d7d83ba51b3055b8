"""Files of arrays (.npz) that others have written, which have no checksum of ours: that of each array is compared first."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file; ValueError if it is none, or damaged. Nothing in it is run.

    A ZIP file has a checksum of each of its files. It is compared before NumPy parses the bytes: a damaged header could ask for
    more memory than there is.
    """
    try:
        with zipfile.ZipFile(path) as file:
            contents = {name: file.read(name) for name in file.namelist()}
        return {
            name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
            for name, content in contents.items()
        }
    except OSError as error:
        if error.filename is not None:  # there is no such file, or it may not be read
            raise
        raise ValueError(f"{path} is damaged ({error})") from error
    except Exception as error:  # a changed byte can lead a reader of ZIP files anywhere
        raise ValueError(f"{path} is no .npz file of plain arrays, or it is damaged ({error})") from error
