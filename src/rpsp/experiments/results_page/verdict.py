"""The claims, their verdicts, the two protocols, and the evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from rpsp.experiments import claims, statistics
from rpsp.experiments.paper.tables import PROTOCOLS, Protocol
from rpsp.experiments.results_page.markdown import (
    code,
    p_text,
    paragraph,
    percent,
    plural,
    seeds_text,
    table,
)

Verdicts = Mapping[str, Sequence[claims.Judged]]
"""The paper's claims, judged under each protocol by its name."""


def verdict_section(paper: Verdicts, ours: Sequence[claims.Judged]) -> str:
    """Return the tables of verdicts: of the paper's claims under each protocol, and of ours."""
    rows = [
        [one.claim.text, one.claim.where, *(_said(judged[i]) for judged in paper.values())]
        for i, one in enumerate(next(iter(paper.values())))
    ]
    counts = [f"{PROTOCOLS[name].phrase}, {_count(judged)}" for name, judged in paper.items()]
    counts = [f"{text[0].upper()}{text[1:]}." for text in counts]
    return "\n".join(
        [
            "## Verdict\n",
            paragraph(
                f"The paper makes {len(rows)} claims. {' '.join(counts)} Of our own {len(ours)} claims, "
                f"{_count(ours)}. All tests are listed under [Evidence](#evidence)."
            ),
            *map(protocol_text, PROTOCOLS.values()),
            table(["claim of the paper", "", *(PROTOCOLS[name].short for name in paper)], rows, 2 + len(paper)),
            table(["our claim", "", "verdict"], [[o.claim.text, o.claim.where, _said(o)] for o in ours], 3),
            "A claim that a method is *better* than another, *not worse* or *alike* is decided as follows.\n",
            RULES_TABLE,
            paragraph(RULES),
        ]
    )


def protocol_text(protocol: Protocol) -> str:
    """Describe a protocol, with the changes of tasks that no setting can make yet."""
    made = [f"On {env.removesuffix('-v5')}, {c.about}." for env, c in protocol.tasks.items() if c.settings]
    not_made = [f"on {env.removesuffix('-v5')}, {c.about}" for env, c in protocol.tasks.items() if not c.settings]
    if not_made:
        made.append(f"Not done yet: {'; '.join(not_made)}. There the task is used as it is.")
    return paragraph(f"*{protocol.short[0].upper()}{protocol.short[1:]}*: {' '.join([protocol.about, *made])}")


_MARGIN = f"{100 * claims.MARGIN:g}\u00a0%"
RULES = (
    "Each comparison has two of Welch's tests, one for *holds* and one for *does not hold*, both at the level "
    f"{claims.LEVEL:g}. {_MARGIN} refers to the other method's mean. Everything that neither test shows is undecided. If "
    "both are significant, the difference is certain but small: then *better* holds, and *not worse* and *alike* do not. "
    "The p-values of both tests of all comparisons of a column are adjusted together by Holm's method. "
    f"A comparison needs {claims.FEWEST} seeds on either side. Final returns are compared only at the paper's number of "
    "iterations. A claim with several comparisons holds if all of them hold, and does not hold if one does not, unless "
    "it states a number. Each curve is the candidate with the largest area, as in the paper. The best of several curves "
    "is selected by the same runs, which favours it slightly."
)
"""Explanation of the verdicts."""
RULES_TABLE = table(
    ["claim", "holds if the mean is significantly", "does not hold if the mean is significantly"],
    [
        ["better", "higher", f"less than {_MARGIN} higher, or lower"],
        ["not worse", f"less than {_MARGIN} lower, or higher", "lower"],
        ["alike", f"less than {_MARGIN} away", "different"],
    ],
    3,
)


def _said(judged: claims.Judged) -> str:
    """Format a verdict. If the tests of a claim disagree, the numbers of their verdicts follow in parentheses."""
    words = {"holds": "hold", "undecided": "undecided", "does not hold": "do not hold"}
    told = Counter("not tested" if o.untested else words[o.verdict] for o in judged.outcomes)
    parts = ", ".join(f"{told[word]} {word}" for word in (*words.values(), "not tested") if told[word])
    parts = "not tested" if {*told} == {"not tested"} else parts
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


def evidence_section(paper: Verdicts, ours: Sequence[claims.Judged]) -> str:
    """Return all tests of all claims."""
    parts = [
        "## Evidence\n",
        paragraph(
            "Means ± standard errors (seeds). Differences and their 95 % intervals are in percent of the rival's value. "
            "The intervals are not adjusted and decide nothing. The p-values are those of the tests for *holds* and for "
            "*does not hold*, first as they are, then adjusted by Holm's method."
        ),
    ]
    groups = {f"The paper's claims {PROTOCOLS[name].phrase}": judged for name, judged in paper.items()}
    for head, judged in (groups | {"Our claims": ours}).items():
        comparisons = {o.duel for each in judged for o in each.outcomes if not o.untested}
        parts += [f"### {head}\n", f"{plural(len(comparisons), 'comparison')} of two tests each.\n"]
        for each in judged:
            text = each.claim.text
            parts.append(f"**{text[0].upper()}{text[1:]}** ({each.claim.where}): {each.verdict}.\n")
            parts.append("\n".join(f"- {_outcome(outcome)}" for outcome in each.outcomes) + "\n")
    return "\n".join(parts)


def _outcome(outcome: claims.Outcome) -> str:
    """Format the outcome of a duel."""
    duel, sides = outcome.duel, (outcome.challenger, outcome.rival)
    if None in sides or not all(map(len, outcome.values)):
        return f"{outcome.task}: {' compared with '.join(outcome.names)}; not tested: {outcome.untested}."
    times = "" if duel.times == 1 else f"{duel.times:g}\u00a0× "
    told = [
        f"{times if curve is outcome.rival else ''}{code(curve.name, curve.label)} {seeds_text(values)}"
        for curve, values in zip(sides, outcome.values, strict=True)
        if curve is not None
    ]
    measure = claims.MEASURES[duel.measure].format(outcome.iterations)
    text = f"{outcome.task}: {' compared with '.join(told)}, {measure}"
    low, high = statistics.welch_interval(*outcome.values)
    base = abs(float(outcome.values[1].mean()))
    gain = float(outcome.values[0].mean() - outcome.values[1].mean())
    if base and np.isfinite(low):
        text += ": {} [{}, {}]".format(*(percent(value / base) for value in (gain, low, high)))
    if outcome.untested:
        return f"{text}; not tested: {outcome.untested}."
    pairs = zip(("holds", "does not hold"), outcome.p, outcome.p_holm, strict=True)
    text += "; " + ", ".join(f"{what}: p {_equals(p)} (Holm {p_text(holm)})" for what, p, holm in pairs)
    small = f", by less than {_MARGIN}" if outcome.small else ""
    return f"{text}; {duel.expected}: {outcome.verdict}{small}."


def _equals(p: float) -> str:
    """Format a p-value after the letter p."""
    text = p_text(p)
    return text if text.startswith("<") else f"= {text}"
