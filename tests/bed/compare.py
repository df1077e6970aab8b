"""`seqshift.cpu_bed.compare` under the name by which tests know it."""

from seqshift.cpu_bed.compare import *  # noqa: F403
