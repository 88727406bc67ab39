"""Settings of link prediction (task links): a part of :class:`partita.Config`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from partita.core.options import MOST_NEIGHBORS


class LinkSettings(BaseModel):
    """What only the task ``links`` takes."""

    decoder: str = Field(
        "auto",
        description="Score of an edge from the rows of its ends: dot, cosine, mlp, bilinear, distmult, complex, "
        "transe, rotate; auto: distmult in typed graphs, else dot.",
    )
    reciprocal: bool = Field(
        False,
        description="Reciprocal (inverse) relations: a second set of parameters of every relation, by which heads are "
        "ranked. Needs --corrupt both.",
    )
    negative_sampler: str = Field(
        "auto",
        description="Negative edges: uniform, degree (by degree^0.75), joint (shared by the batch), in_batch, all "
        "(every node of the type); auto: joint with model none, else uniform.",
    )
    negatives: int = Field(
        0,
        ge=0,
        le=MOST_NEIGHBORS,
        description="Negatives per edge and side; 0: 512 of joint, 1 of uniform and degree. Not for in_batch and all, "
        "whose number is given.",
    )
    corrupt: Literal["auto", "tail", "head", "both"] = Field(
        "auto", description="End of an edge that a negative replaces; auto: both with model none, else tail."
    )
    target_relations: str = Field(
        "",
        description="Relations whose edges are learned, separated by spaces; default all but reverse ones.",
    )
    exclude_targets: bool = Field(
        True, description="The edges of a step, and their reverses, carry no messages in that step."
    )
    message_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the training edges that carry messages; only the others are predicted. Default: all are "
        "predicted, and carry messages in steps that do not predict them.",
    )
    known_negatives: bool = Field(
        True, description="Negatives may be edges of the graph; with --no-known-negatives they are left out."
    )
    loop_negatives: bool | None = Field(
        None,
        description="The other end of an edge in the place of the end is one more negative, within one node type and "
        "unless it has an edge with itself; default on with model none and decoders distmult and complex, else off.",
    )
    margin: float = Field(1.0, ge=0, le=10**6, description="Margin (loss margin).")
    temperature: float = Field(
        1.0, gt=0, le=10**6, description="Temperature of negatives (losses softmax, self_adversarial)."
    )
    penalty: float | None = Field(
        None,
        ge=0,
        le=10**6,
        description="Weight of the penalty N3 (cubes of the numbers that a score is made of) of an edge; default 0.1 "
        "with model none and decoders distmult and complex, else 0.",
    )
    eval_negatives: int = Field(
        0,
        ge=0,
        le=MOST_NEIGHBORS,
        description="Evaluation ranks each end of an edge among so many sampled nodes of its type; 0: among all.",
    )
    held_out: str = Field(
        "0.05,0.10",
        description="Shares of the edges that are held out for validation and for testing, where the store has none "
        "held out.",
    )
    split_times: str = Field(
        "",
        description="Where edges have times: two times, by a comma. Links that are asked about from the first one on "
        "are for validation, from the second on for tests, others for training. Default: as the graph was ingested.",
    )
