"""The claims, their verdicts, and the evidence."""

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
    """Return the tables of verdicts, with one setting per method and, if there are candidates, with selection."""
    texts = {"one setting per method" if len(judged) > 1 else "verdict": judged[False]}
    texts |= {"selected": judged[True]} if len(judged) > 1 else {}
    rows = [
        [one.claim.text, one.claim.where, *(_said(each[i]) for each in texts.values())]
        for i, one in enumerate(judged[False])
    ]
    n, last = len(claims.PAPER), judged[max(judged)]
    head = ["", *texts]
    return "\n".join(
        [
            "## Verdict\n",
            paragraph(
                f"Of the paper's {n} claims, {_count(last[:n])}. Of our own {len(claims.OURS)} claims, "
                f"{_count(last[n:])}. All tests are listed under [Evidence](#evidence)."
            ),
            table(["claim of the paper", *head], rows[:n], len(head) + 1),
            table(["our claim", *head], rows[n:], len(head) + 1),
            paragraph(RULES),
        ]
    )


RULES = (
    f"A comparison needs at least {claims.FEWEST} seeds on either side. Tests are Welch's at level {claims.LEVEL:g}. "
    "Their p-values are adjusted by Holm's method, over the paper's claims and over ours separately. *Better* holds if "
    "the difference is significant. It does not hold if the method is significantly worse, or if the 95 % confidence "
    f"interval of the difference excludes an advantage of {100 * claims.MARGIN:g} %. *Not worse* holds if the mean is "
    "at least as high, or if the interval excludes a disadvantage of this size. It does not hold if the method is "
    "significantly worse. *Alike* holds if the interval excludes a difference of this size. It does not hold if the "
    "difference is significant. Everything else is undecided. A claim with several tests holds if "
    "all of them hold, and does not hold if one does not, unless it states a number. The best of several curves is "
    "selected by the same runs, which favours it slightly."
)
"""Explanation of the verdicts."""


def _said(judged: claims.Judged) -> str:
    """Format a verdict. If the tests of a claim disagree, the numbers of their verdicts follow in parentheses."""
    words = {"holds": "hold", "undecided": "undecided", "does not hold": "do not hold"}
    told = Counter(words[o.verdict] if o.enough else "without enough runs" for o in judged.outcomes)
    parts = ", ".join(f"{told[word]} {word}" for word in (*words.values(), "without enough runs") if told[word])
    return f"**{judged.verdict}**" + (f" ({parts})" if {*told} - {words[judged.verdict]} else "")


def _count(judged: Sequence[claims.Judged]) -> str:
    """Count verdicts."""
    counts = Counter(each.verdict for each in judged)
    texts = {
        "holds": ("holds", "hold"),
        "does not hold": ("does not hold", "do not hold"),
        "undecided": ("is undecided", "are undecided"),
    }
    first, second, third = (f"{counts[verdict]} {words[counts[verdict] != 1]}" for verdict, words in texts.items())
    return f"{first}, {second} and {third}"


def evidence_section(judged: Sequence[claims.Judged]) -> str:
    """Return all tests of all claims."""
    parts = [
        "## Evidence\n",
        "Means ± standard errors (seeds). Differences and their 95 % intervals (not adjusted) are in percent of the "
        "rival's value.\n",
    ]
    for each in judged:
        text = each.claim.text
        parts.append(f"**{text[0].upper()}{text[1:]}** ({each.claim.where}): {each.verdict}.\n")
        parts.append("\n".join(f"- {_outcome(outcome)}" for outcome in each.outcomes) + "\n")
    return "\n".join(parts)


def _outcome(outcome: claims.Outcome) -> str:
    """Format the outcome of a duel."""
    duel, sides = outcome.duel, (outcome.challenger, outcome.rival)
    names = " or ".join(duel.challengers), duel.rival
    if absent := [name for name, curve in zip(names, sides, strict=True) if curve is None]:
        return f"{duel.task}: there is no finished run of {' or of '.join(absent)}."
    times = "" if duel.times == 1 else f"{duel.times:g}\u00a0× "
    told = [
        f"{times if curve is outcome.rival else ''}{code(curve.name, curve.label)} "
        f"{seeds_text(values) if len(values) else '– (0)'}"
        for curve, values in zip(sides, outcome.values, strict=True)
        if curve is not None
    ]
    measure = claims.MEASURES[duel.measure].format(outcome.iterations)
    text = f"{duel.task}: {' compared with '.join(told)}, {measure}"
    if np.isfinite(outcome.p):
        low, high = statistics.welch_interval(*outcome.values)
        base = abs(float(outcome.values[1].mean()))
        gain = float(outcome.values[0].mean() - outcome.values[1].mean())
        text += ": {} [{}, {}]".format(*(percent(value / base) for value in (gain, low, high))) if base else ""
        text += f", p = {p_text(outcome.p)}, Holm {p_text(outcome.p_holm)}"
    return f"{text}; {duel.expected}: {outcome.verdict}."
