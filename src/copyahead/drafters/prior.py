"""The tables that `priced` starts from: fitted once, shipped, and then adapted as it runs."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from copyahead.errors import ConfigError
from copyahead.kernels import features

FORMAT = "copyahead-prior/1"
RATE_WEIGHT = 50.0
"""The running rate starts as 2 tokens a step, with the weight of this many steps."""

SHAPES: dict[str, tuple[int, tuple[int, ...]]] = {
    "match_place": (features.MATCH_PLACE, (features.NUM_MATCHES, features.NUM_PLACES)),
    "rank": (features.RANK_WEIGHT, (features.NUM_GROUPS, features.NUM_RANKS)),
    "old_document": (features.OLD_DOCUMENT, (features.NUM_GROUPS,)),
    "echo": (features.ECHO_WEIGHT, (features.NUM_FINE_GROUPS, features.NUM_ECHOES)),
    "distance": (features.DISTANCE_WEIGHT, (features.NUM_FINE_GROUPS, features.NUM_DISTANCES)),
    "escape": (features.ESCAPE, (features.NUM_MATCHES, features.MOST_DIFFERENT)),
    "escape_state": (features.ESCAPE_STATE, (features.NUM_ESCAPE_STATES,)),
    "slope": (features.SLOPE, ()),
    "context": (features.CONTEXT, (2, features.NUM_MATCHES, features.NUM_COPY_STATES)),
    "position": (features.POSITION, (features.NUM_GROUPS, features.NUM_POSITIONS)),
}
"""Where each table lies in the model, and its shape. Rows and columns: `kernels.features`."""


def model_of(tables: dict[str, Any]) -> npt.NDArray[np.float64]:
    """The flat model of a prior document. Raises ConfigError where it is not one."""
    if tables.get("format") != FORMAT:
        raise ConfigError(f"the prior must be in format {FORMAT}, not {tables.get('format')!r}")
    model = np.zeros(features.MODEL_SIZE)
    for name, (start, shape) in SHAPES.items():
        values = np.asarray(tables.get(name), dtype=np.float64)
        if values.shape != shape or not np.isfinite(values).all():
            raise ConfigError(f"table {name} of the prior must be finite and of shape {shape}")
        model[start : start + values.size] = values.ravel()
    model[: features.SLOPE] = np.exp(model[: features.SLOPE])
    model[features.RATE_TOKENS] = 2 * RATE_WEIGHT
    model[features.RATE_COST] = RATE_WEIGHT
    return model


@lru_cache(maxsize=1)
def shipped() -> npt.NDArray[np.float64]:
    """The model of the prior in this package. Not to be written to."""
    text = files("copyahead.drafters").joinpath("prior.json").read_text(encoding="utf-8")
    model = model_of(json.loads(text))
    model.setflags(write=False)
    return model


def read_prior(path: Path) -> npt.NDArray[np.float64]:
    """The model of a prior document in a file. Raises ConfigError where it holds none."""
    try:
        tables = json.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"prior {path} cannot be read ({error.strerror})") from None
    except ValueError:
        raise ConfigError(f"prior {path} is not JSON: name what train_prior.py wrote") from None
    if not isinstance(tables, dict):
        raise ConfigError(f"prior {path} is no JSON object: name what train_prior.py wrote")
    return model_of(tables)
