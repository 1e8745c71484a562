"""The page says what results say: known winners, lengths, seeds, what is missing. It is that of the committed results."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import made_up_result

from rpsp.cli import main
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.paper import EVERY, PROTOCOLS, Found, Protocol, TaskChange, labels_of
from rpsp.experiments.results import Result, read_results, write_result
from rpsp.experiments.results_page import document, write
from rpsp.experiments.results_page.markdown import between, table
from rpsp.experiments.results_page.tables import GLANCE
from rpsp.experiments.results_page.verdict import protocol_text
from rpsp.experiments.statistics import mean_and_error, return_at, welch, welch_greater
from rpsp.experiments.words import mean_with_error

ROOT = Path(__file__).parents[2]


def runs(method: str, level: float, seeds: int = 3, iterations: int = 12, task: str = "Hopper-v5") -> list[Result]:
    """Of known areas: the level times the iterations, a standard error of 1 % of it."""
    return [
        made_up_result(task, method, s, np.full(iterations, level * (1 + 0.01 * np.sqrt(seeds) * (s - 1))))
        for s in range(seeds)
    ]


def cells(text: str, first: str) -> list[str]:
    """What stands in the row of a table that has such a cell."""
    line = next(line for line in text.splitlines() if line.startswith("|") and f" {first} " in line)
    return [cell.strip() for cell in line[1:-1].split("|")]


def page(results: list[Result]) -> str:
    return document(results).text.replace("\u00a0", " ")


def test_the_tables_hold_means_errors_seeds_and_lengths() -> None:
    text = page([*runs("fm2", 100), *runs("gru32", 50, iterations=15), *runs("rpsp-alt+obs", 200)])
    assert cells(text, "GRU (`gru32`)")[1:4] == ["3 × 15", "600.0 ± 6.0", "50.00 ± 0.50"]  # over the 12 that all have
    best = cells(text, "RPSP-Alt (`rpsp-alt+obs`)")
    assert best[:4] == ["RPSP-Alt (`rpsp-alt+obs`)", "3 × 12", "2,400 ± 24", "200.0 ± 2.0"]
    assert "**Hopper-v5**, compared over 12 iterations:" in text
    assert "| RPSP-Alt | **2.400 ± 0.024 (3)** |" in text and "| FM | 1.200 ± 0.012 (3) |" in text  # table h
    assert "No results yet for Hopper-v5: `RPSP-VRPG`." in text
    assert cells(text, "on Hopper the best RPSP is significantly better than FM and GRU")[2:] == [
        "**undecided** (not tested)",  # the authors' Hopper has another reward
        "**holds**",
    ]
    assert "at least RecurrentPPO's | Hopper, Walker2d | **undecided** (not tested) |" in text
    assert (
        "Hopper-v5: RPSI-PPO compared with RecurrentPPO; not tested: there is no finished run of RPSI-PPO or of "
        "RecurrentPPO." in text
    )
    assert "There are no results yet for: a, b, d" in text


def test_a_stub_and_a_peer_cost_the_others_nothing() -> None:
    full = [*runs("fm2", 100, iterations=150), *runs("rpsi-trpo", 120, iterations=150)]
    stub = made_up_result("Hopper-v5", "gru32", 0, np.ones(3), iterations=150, finished=False)
    peer = [
        made_up_result("Hopper-v5", "recurrent-ppo", s, np.full(20, 90.0 + s), steps=1e4 * np.arange(1.0, 21))
        for s in range(3)
    ]
    text = page([*full, stub, *peer])
    assert "**Hopper-v5**, compared over 150 iterations:" in text and "(1 unfinished or failed left out)" in " ".join(
        text.split()
    )
    assert "| `recurrent-ppo` | 3 | 20 |" in text
    assert cells(text, "200,000")[:4] == ["Hopper", "200,000", "91.00 ± 0.58 (3)", ""]
    assert "recurrent-ppo" not in text.split("## ours")[1].split("##")[0]  # other iterations: in the figure alone


def test_candidates_are_shown_once_as_they_are_and_once_selected() -> None:
    one = page([*runs("fm2", 100), *runs("gru32", 50)])
    assert "Selected" not in one
    both = document([*runs("fm2", 100), *runs("fm5", 130), *runs("gru32", 50)])
    assert both.text.count("Selected by the largest area under the curve") > 1
    assert "| FM (`fm2`) |" in both.text and "| FM (`fm5`), of 2 |" in both.text
    assert {"results/c", "results/c_selected"} <= {*both.figures}


def test_the_two_protocols_stand_side_by_side() -> None:
    """On Walker2d, which is the same under both. On Hopper the authors' runs have another reward."""
    both, gathered = "Walker2d-v5", Found([], PROTOCOLS["authors"]).task("Hopper-v5")
    results = [
        *(
            run
            for m, level in (
                ("fm2", 130),
                ("fm2-vrpg", 50),
                ("fm5-vrpg", 60),
                ("gru32", 110),
                ("gru32, max_kl=0.02", 120),
            )
            for run in runs(m, level, task=both)
        ),
        *runs("rpsp-alt+obs", 100, iterations=10, task=both),
        *runs("fm2", 130),
        *runs("gru32", 90),
        *runs("fm2-vrpg", 700, task=gathered),
        *runs("gru32", 500, task=gathered),
    ]
    text = page(results)
    section = text.split("## The two protocols")[1].split("## h")[0]
    head, fm, gru = (cells(section, name) for name in ("Walker2d, authors, 10", "FM", "GRU"))
    authors, equal = head.index("Walker2d, authors, 10"), head.index("Walker2d, equal, 10")
    assert equal == authors + 1 and "Swimmer, authors" in head
    assert (fm[authors], fm[equal]) == ("0.6000 ± 0.0060 (3)", "**1.300 ± 0.013 (3)**")  # over the 10 that all have
    assert (gru[authors], gru[equal]) == ("**1.100 ± 0.011 (3)**", "1.200 ± 0.012 (3)")  # the wider region is ours
    assert cells(section, "RPSP-VRPG")[authors] == fm[head.index("Swimmer, equal")] == "missing"
    assert "| Walker2d | GRU > RPSP-Alt > FM; missing: RPSP-VRPG | FM > GRU > RPSP-Alt; missing: RPSP-VRPG |" in section
    hopper = head.index("Hopper, authors, 12")
    assert (fm[hopper], gru[hopper]) == ("**8.400 ± 0.084 (3)**", "6.000 ± 0.060 (3)")
    assert (fm[hopper + 1], gru[hopper + 1]) == ("**1.560 ± 0.016 (3)**", "1.080 ± 0.011 (3)")
    assert "| Swimmer | missing: FM, GRU, RPSP-VRPG, RPSP-Alt | missing:" in section
    verdict = " ".join(text.split("## Verdict")[1].split("|")[0].split())
    counts = re.findall(
        r"(Under the authors' protocol|With equal optimisers), (\d+) holds?, (\d+) do(?:es)? not", verdict
    )
    assert [name for name, *_ in counts] == ["Under the authors' protocol", "With equal optimisers"]
    assert cells(text, "on Walker2d the best RPSP is significantly better than GRU")[2:] == ["**does not hold**"] * 2
    best = cells(text, "the best RPSP is at least as good as FM and GRU on every task except cart-pole")[2:]
    assert best == [
        "**does not hold** (1 hold, 1 do not hold, 4 not tested)",
        "**does not hold** (2 do not hold, 4 not tested)",
    ]


def test_the_page_says_which_changes_of_tasks_are_not_made() -> None:
    authors = " ".join(protocol_text(PROTOCOLS["authors"]).split())
    for env, change in PROTOCOLS["authors"].tasks.items():
        told = f"n {env.removesuffix('-v5')}, {change.about}"
        assert told in authors and (told in authors.split("Not done yet")[0]) == bool(change.settings)
    made = Protocol("p", "p", "", "It.", tasks={"Hopper-v5": TaskChange("it is noisy", {"obs_noise": 0.1})})
    assert protocol_text(made) == "*P*: It. On Hopper, it is noisy.\n"


def test_the_evidence_tells_both_p_values() -> None:
    text = page([*runs("rpsp-alt+obs", 105), *runs("fm2", 100)])
    ours, theirs = (np.array([run.returns.sum() for run in runs("fm2", level)]) for level in (105, 100))
    p = welch_greater(ours, theirs), welch_greater(theirs, ours, -0.05 * theirs.mean())
    (line,) = {line for line in text.splitlines() if "compared with FM (`fm2`)" in line and "; better: " in line}
    assert f"; holds: p = {p[0]:.2g} (Holm " in line and f"does not hold: p = {p[1]:.2g} (Holm " in line
    assert line.startswith(
        "- Hopper-v5: RPSP-Alt (`rpsp-alt+obs`) 1,260 ± 13 (3) compared with FM (`fm2`) 1,200 ± 12 (3)"
    )
    assert "area under curve over 12 iterations: +5.0 % [" in line and line.endswith("; better: holds.")


def test_the_overview_shows_the_papers_method_as_the_paper_has_it() -> None:
    """Refits are ours, so that methods with refits have "ours" in their name."""
    for name, curves in GLANCE.items():
        refitted = any("refit_before=" in label for curve in curves for label in labels_of(curve))
        assert not refitted or "(ours)" in name
    better = [*runs("rpsp-alt+obs", 100), *runs("rpsp-alt+obs, refit_before=5/12/25/40", 200)]
    text = page([*better, *runs("fm2-ppo", 50)])
    glance = text[text.index("at a glance") : text.index("## The two")]
    assert "| RPSP (the paper's) | 100.0 ± 1.0 (3) |" in glance
    assert "| RPSP, refitted (ours) | **200.0 ± 2.0 (3)** |" in glance and "| FM-PPO | 50.00 ± 0.50 (3) |" in glance
    assert "| RPSP-Alt, refitted (ours) |" in text.split("## h")[1]


def test_a_curve_that_has_hardly_begun_does_not_shorten_the_overview() -> None:
    text = page(
        [*runs("fm2", 50, iterations=30), *runs("gru32", 60, iterations=40), *runs("fm2-ppo", 70, iterations=5)]
    )
    glance = text[text.index("at a glance") : text.index("## The two")]
    assert "|  | Hopper, 0.06 M steps |" in glance and "FM-PPO |" not in glance


def test_what_made_the_difference_is_told_against_the_method_without_it() -> None:
    text = page([*runs("rpsp-alt", 100), *runs("random-psr", 80), *runs("rpsp-alt, filter_kl=none", 110)])
    assert cells(text, "`random-psr`") is not None
    section = text.split("## differences")[1].split("##")[0]
    base, *changed = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert base.startswith("| *over 12 iterations* | `rpsp-alt` |")  # once, though two questions have it
    assert [line.split(" | ")[0] for line in changed] == ["| initialisation", "| trust region on the filter's step"]
    assert "| −20.0 % |" in changed[0] and "| +10.0 % |" in changed[1]
    assert "refits" not in section


def test_nothing_finished_is_said() -> None:
    with pytest.raises(FileFormatError, match="no finished run"):
        document([made_up_result("Hopper-v5", "fm2", 0, np.ones(3), iterations=5, finished=False)])


def test_what_is_seen_at_a_glance_is_compared_after_equally_many_steps() -> None:
    late = np.repeat([0.0, 60.0, 999.0], [12, 3, 5])
    text = page(
        [
            *runs("fm2", 50, iterations=15),
            made_up_result("Hopper-v5", "gru32", 0, late),  # 60 in the last tenth of 30 000 steps, whatever comes later
            *runs("recurrent-ppo", 70, iterations=10),  # has not come so far
        ]
    )
    glance = text[text.index("at a glance") : text.index("## The two")]
    assert "|  | Hopper, 0.03 M steps |" in glance
    assert "| FM | 50.00 ± 0.50 (3) |" in glance and "| GRU | **60.0 (1)** |" in glance
    assert "| RecurrentPPO |" not in glance


def glanced(task: str, without: str = "") -> list[Result]:
    return [r for name in GLANCE if name != without for r in runs(labels_of(GLANCE[name][0])[0], 100, task=task)]


def test_a_readme_shows_it_once_hopper_and_walker2d_have_every_curve(tmp_path: Path) -> None:
    hopper, walker = EVERY[2:]
    assert document([*glanced(hopper), *glanced(walker, "GRU")]).glance == ""
    page, readme = tmp_path / "docs" / "results.md", tmp_path / "README.md"
    readme.write_text("before\n<!-- glance -->\nold\n<!-- /glance -->\nafter\n", encoding="utf-8")
    written = write([*glanced(hopper), *glanced(walker)], page, readme)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- glance -->\n![") and text.endswith("<!-- /glance -->\nafter\n")
    assert "(docs/figures/glance.png)" in text and "over 3 seeds." in " ".join(text.split()) and "old" not in text
    for path in (
        *written,
        *(page.parent / name for name in re.findall(r"\]\((figures/[^)]+)\)", page.read_text(encoding="utf-8"))),
    ):
        assert path.stat().st_size > 100
    with pytest.raises(UsageError, match=r"readme: .*nothing\.md.* has no lines <!-- glance -->"):
        write(glanced(hopper), page, tmp_path / "nothing.md")


def test_the_command_writes_the_page_and_runs_nothing(tmp_path: Path, capsys: Any) -> None:
    for result in runs("fm2", 100, seeds=1):
        write_result(result, tmp_path / "results")
    page, figures = tmp_path / "page.md", tmp_path / "figures" / "results"
    figures.mkdir(parents=True)
    for name in ("c_selected", "mine"):
        (figures / f"{name}.png").write_bytes(b"of a page before")
    main(
        ["paper", "--page", str(page), "--results", str(tmp_path / "results"), "--out", str(tmp_path / "no"), "--json"]
    )
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["page"][0] == str(page) and "1 run of 1 task" in page.read_text(encoding="utf-8")
    assert all(Path(path).exists() for path in shown["page"]) and not (tmp_path / "no").exists()
    assert (
        (figures / "c.png").exists() and (figures / "mine.png").exists() and not (figures / "c_selected.png").exists()
    )


def test_a_readme_without_a_page_is_a_mistake(capsys: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["paper", "--readme", "README.md"])
    assert "readme: 'README.md' shows a part of --page; give that too." in capsys.readouterr().err


def test_markdown() -> None:
    assert table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |\n"
    assert between("1<!-- m -->\nold<!-- /m -->2", "m", "new\n") == "1<!-- m -->\nnew\n<!-- /m -->2"


@cache
def all_committed() -> list[Result]:
    return read_results([ROOT / "results"])[0]


def test_the_page_is_that_of_the_committed_results() -> None:
    """After new results: `make results`."""
    made = document(all_committed())
    assert made.text == (ROOT / "docs" / "results.md").read_text(encoding="utf8")
    figures = ROOT / "docs" / "figures"
    drawn = {figures / f"{name}.png" for name in made.figures}
    assert {figures / "glance.png", *(figures / "results").iterdir()} == drawn
    assert all(path.stat().st_size < 100_000 for path in drawn)
    readme = (ROOT / "README.md").read_text(encoding="utf8")
    assert between(readme, "glance", made.glance.replace("{docs}", "docs")) == readme


TASKS = {
    "Hopper": "Hopper-v5",
    "Walker2d": "Walker2d-v5",
    "HalfCheetah": "HalfCheetah-v5, observe=positions",
    "Ant": "Ant-v5, observe=positions",
}


def committed(task: str, method: str, steps: float) -> np.ndarray:
    """Returns after so many steps of the committed runs."""
    runs = [run for run in all_committed() if (run.task, run.method) == (task, method)]
    values = np.array([return_at(steps, run.steps, run.returns) for run in runs])
    return values[np.isfinite(values)]


def typed(page: str, row: str) -> list[str]:
    """A row of a table in the docs, digits not grouped."""
    text = (ROOT / "docs" / "training" / page).read_text(encoding="utf8").replace("−", "-")
    return cells(re.sub(r"(?<=\d),(?=\d{3})", "", text), row)


def told(values: np.ndarray) -> str:
    return mean_with_error(*mean_and_error(values)).replace(",", "")


DISTURBANCES = {"undisturbed": "", "two steps late": ", obs_latency=2", "noise": ", relative_noise=0.1"}


@pytest.mark.parametrize("disturbance, label", DISTURBANCES.items())
@pytest.mark.parametrize("name", TASKS)
def test_the_table_of_sac_is_that_of_the_committed_results(name: str, disturbance: str, label: str) -> None:
    *told_there, p = typed("sac.md", f"{name}, {disturbance}")[1:]
    methods = (
        f"{method}-sac, hidden=256/256{more}" for method, more in (("rpsi", ""), ("rpsi", ", plus_obs=0"), ("fm2", ""))
    )
    values = [committed(TASKS[name] + label, method, 3e5) for method in methods]
    assert told_there == [f"{told(each)} ({len(each)})" for each in values]
    assert float(p) == pytest.approx(welch(values[0], values[2]).p, rel=0.1)


REFITTED = "rpsi-sac, plus_obs=0, refit_before=1/2/4/8/16/32/64/128/256, refit_above=0"
REPLAYED = {
    "refits, stored states kept": REFITTED,
    "refits, stored states computed anew": f"{REFITTED}, recompute=true",
    "no refits: the default": "rpsi-sac, plus_obs=0",
}


@pytest.mark.parametrize("row, method", REPLAYED.items())
def test_the_table_of_stored_states_is_that_of_the_committed_results(row: str, method: str) -> None:
    areas = {
        task: np.array(
            [run.returns.sum() / 1000 for run in all_committed() if (run.task, run.method) == (task, method)]
        )
        for task in ("Hopper-v5", "Walker2d-v5")
    }
    assert [len(values) for values in areas.values()] == [3, 1]
    assert typed("sac.md", row)[1:] == [told(areas["Hopper-v5"]), f"{areas['Walker2d-v5'][0]:.0f}"]


OF_PPO = {"`rpsi-ppo`": "rpsi-ppo", "`fm2-ppo`": "fm2-ppo", "sb3-contrib's": "recurrent-ppo"}


@pytest.mark.parametrize("row, method", OF_PPO.items())
def test_the_table_of_ppo_after_a_million_steps_is_that_of_the_committed_results(row: str, method: str) -> None:
    for cell, task in zip(typed("ppo.md", row)[1:], TASKS.values(), strict=True):
        values = committed(task, method, 1e6)
        assert cell == (told(values) if len(values) else "")
