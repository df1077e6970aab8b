"""`seqshift.cpu_bed.engine` under the name by which tests know it."""

from seqshift.cpu_bed.engine import *  # noqa: F403
