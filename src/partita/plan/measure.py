"""What the workers do that are started to measure."""

from __future__ import annotations

from typing import Any

from partita.comm.context import Context
from partita.config import Config
from partita.plan.links import measure_links
from partita.plan.rates import measure_rates


def links_on_worker(context: Context, *, quick: bool = False) -> dict[str, Any]:
    """Returns :meth:`partita.plan.links.Links.to_json`."""
    return measure_links(context, quick=quick).to_json()


def all_on_worker(context: Context, *, store: str, config: dict[str, Any], links: bool) -> dict[str, Any]:
    """Returns ``rates`` of a model, and, if they are asked for, quickly measured ``links``."""
    rates = measure_rates(context, store, Config.make(config)).to_json()
    return {"rates": rates, "links": links_on_worker(context, quick=True) if links else None}
