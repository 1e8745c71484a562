"""Part of the split of a larger module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rpsp.experiments import claims, statistics
from rpsp.experiments.results_page.markdown import (
    code,
    p_text,
    paragraph,
    percent,
    seeds_text,
    table,
)

if TYPE_CHECKING:
    pass


def verdict_section(judged: Mapping[bool, Sequence[claims.Judged]]) -> str:
    """What became of the claims: with one setting a method, and selected where there is anything to select from."""
    texts = {"one setting a method" if len(judged) > 1 else "verdict": judged[False]}
    texts |= {"selected": judged[True]} if len(judged) > 1 else {}
    rows = [
        [one.claim.text, one.claim.where, *(_said(each[i]) for each in texts.values())]
        for i, one in enumerate(judged[False])
    ]
    n, last = len(claims.PAPER), judged[max(judged)]
    head = ["", *texts]
    return "\n".join(
        [
            "## The verdict\n",
            paragraph(
                f"Of the paper's {n} claims {_count(last[:n])}; of our own {len(claims.OURS)} claims {_count(last[n:])}. "
                "[The evidence](#the-evidence) is below."
            ),
            table(["the paper says", *head], rows[:n], len(head) + 1),
            table(["we set out to show", *head], rows[n:], len(head) + 1),
            paragraph(
                f"It takes {claims.FEWEST} seeds on either side, and tests are Welch's at {claims.LEVEL:g}, corrected by "
                "Holm over the paper's claims together, and over ours. That one is *better* holds where it is "
                "significantly so; it does not hold "
                "where it is significantly worse, or where the 95 % interval of the difference leaves no advantage of "
                f"{100 * claims.MARGIN:g} %. That one is *not worse* holds where its mean is no lower, or the interval "
                "leaves no such disadvantage, and does not where it is significantly worse. That two are *alike* holds "
                "where the interval leaves no such difference, and does not where they differ significantly. Anything "
                "else is undecided. A claim of several tests holds if all do, and does not if one does not, unless it says "
                "how many must. The best of "
                "several curves was chosen by the same runs, which favours it a little."
            ),
        ]
    )


def _said(judged: claims.Judged) -> str:
    """The verdict; in parentheses what its tests say, where they are not of one mind, and how many cannot be made yet."""
    words = {"holds": "hold", "undecided": "undecided", "does not hold": "do not"}
    told = Counter(words[o.verdict] if o.enough else "without runs enough" for o in judged.outcomes)
    parts = ", ".join(f"{told[word]} {word}" for word in (*words.values(), "without runs enough") if told[word])
    return f"**{judged.verdict}**" + (f" ({parts})" if {*told} - {words[judged.verdict]} else "")


def _count(judged: Sequence[claims.Judged]) -> str:
    counts = Counter(each.verdict for each in judged)
    return f"{counts['holds']} hold, {counts['does not hold']} do not and {counts['undecided']} are undecided"


def evidence_section(judged: Sequence[claims.Judged]) -> str:
    """Every test of every claim."""
    parts = [
        "## The evidence\n",
        "Means ± standard errors (seeds); differences, and their plain 95 % intervals, in percent of the rival's value.\n",
    ]
    for each in judged:
        text = each.claim.text
        parts.append(f"**{text[0].upper()}{text[1:]}** ({each.claim.where}): {each.verdict}.\n")
        parts.append("\n".join(f"- {_outcome(outcome)}" for outcome in each.outcomes) + "\n")
    return "\n".join(parts)


def _outcome(outcome: claims.Outcome) -> str:
    duel, sides = outcome.duel, (outcome.challenger, outcome.rival)
    names = " or ".join(duel.challengers), duel.rival
    if absent := [name for name, curve in zip(names, sides, strict=True) if curve is None]:
        return f"{duel.task}: there is no finished run of {' nor of '.join(absent)}."
    times = "" if duel.times == 1 else f"{duel.times:g}\u00a0× "
    told = [
        f"{times if curve is outcome.rival else ''}{code(curve.name, curve.label)} "
        f"{seeds_text(values) if len(values) else '– (0)'}"
        for curve, values in zip(sides, outcome.values, strict=True)
        if curve is not None
    ]
    measure = claims.MEASURES[duel.measure].format(outcome.iterations)
    text = f"{duel.task}: {' against '.join(told)}, {measure}"
    if np.isfinite(outcome.p):
        low, high = statistics.welch_interval(*outcome.values)
        base = abs(float(outcome.values[1].mean()))
        gain = float(outcome.values[0].mean() - outcome.values[1].mean())
        text += ": {} [{}, {}]".format(*(percent(value / base) for value in (gain, low, high))) if base else ""
        text += f", p = {p_text(outcome.p)}, Holm {p_text(outcome.p_holm)}"
    return f"{text}; {duel.expected}: {outcome.verdict}."
