"""Tables over many jobs, for people: pandas DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["jobs"]


def jobs() -> pd.DataFrame:
    """All jobs of the job root, the oldest first; an array is one row.

    Returns
    -------
    pandas.DataFrame
        The columns of `clusterkernel.frames.jobs_frame`, whether there are jobs or not.
    """
    from clusterkernel import frames, submission

    return frames.jobs_frame(submission.summaries())
