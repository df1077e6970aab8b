"""`seqshift.cpu_bed.ranks` under the name by which tests know it."""

from seqshift.cpu_bed.ranks import *  # noqa: F403
