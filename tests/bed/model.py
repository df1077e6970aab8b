"""`seqshift.cpu_bed.model` under the name by which tests know it."""

from seqshift.cpu_bed.model import *  # noqa: F403
