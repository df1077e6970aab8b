"""What the demo runs: the model, and the prompts and response lengths of each rank."""

from __future__ import annotations

import random
from dataclasses import dataclass

from seqshift.cpu_bed.model import VOCABULARY, ModelSpec

RANKS = 2
# A response's length is log-normal, as in rollouts of reasoning models: most are short, a few are very long.
SIGMA = 0.9
SHORTEST = 8
PROMPT_LENGTHS = (16, 48)
# Tokens 0 and 1 are special.
FIRST_TOKEN = 2


@dataclass(frozen=True)
class Settings:
    """A demo's parameters. Lengths are in tokens."""

    sequences: int = 128
    """Per rank; also the largest gear."""
    median_length: int = 110
    longest: int = 600
    check_interval: int = 20
    seed: int = 1
    hidden: int = 384
    layers: int = 6

    def __post_init__(self) -> None:
        for name, least in (("sequences", 2), ("median_length", 1), ("check_interval", 1), ("layers", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least {least}")
        if self.hidden < 128 or self.hidden % 128:
            raise ValueError(f"hidden = {self.hidden}: must be a positive multiple of 128")
        if self.longest < max(SHORTEST, self.median_length):
            raise ValueError(f"longest = {self.longest}: must be at least {max(SHORTEST, self.median_length)}")

    @property
    def gears(self) -> list[int]:
        """Graph batch sizes, each half of the one before."""
        sizes = [self.sequences]
        while sizes[-1] > 1:
            sizes.append(sizes[-1] // 2)
        return sizes

    @property
    def model(self) -> ModelSpec:
        """A Qwen2 whose decode step is mostly matrix products; fp32, so that results do not depend on the batch."""
        return ModelSpec(
            hidden=self.hidden,
            intermediate=3 * self.hidden,
            layers=self.layers,
            heads=self.hidden // 64,
            kv_heads=2,
            seed=self.seed,
        )

    @property
    def max_model_len(self) -> int:
        """Room for the longest prompt and response."""
        return PROMPT_LENGTHS[1] + self.longest

    def lengths(self) -> list[list[int]]:
        """Response lengths by rank. All come from one distribution; rank 0 gets the long ones."""
        source = random.Random(f"lengths/{self.seed}")
        drawn = sorted(
            min(self.longest, max(SHORTEST, round(self.median_length * source.lognormvariate(0, SIGMA))))
            for _ in range(RANKS * self.sequences)
        )
        ranks = [drawn[self.sequences :], drawn[: self.sequences]]
        for lengths in ranks:
            source.shuffle(lengths)
        return ranks

    def prompts(self, rank: int) -> list[list[int]]:
        """Token ids of each prompt of a rank."""
        source = random.Random(f"prompts/{self.seed}/{rank}")
        return [
            [source.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(source.randint(*PROMPT_LENGTHS))]
            for _ in range(self.sequences)
        ]
