"""The model card of a trained agent, as Markdown with the front matter that the Hugging Face hub reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rpsp.experiments.words import number

SHOWN = "rpsp", "jax", "gymnasium", "mujoco", "python"
"""Packages whose versions a card shows."""


def card(facts: Mapping[str, Any], versions: Mapping[str, str], curve: bool) -> str:
    """Return the model card.

    Args:
        facts: as `packing.facts_of` returns them.
        versions: versions of packages.
        curve: whether there is a picture of the learning curve.
    """
    rows = {
        "task": f"`{facts['task']}`",
        "method": f"`{facts['method']}`: {facts['about']}",
        "return": _returned(facts),
        "training": f"{facts['steps']:,} environment steps, {facts['iterations']:,} iterations, seed {facts['seed']}; "
        f"mean return at the end {number(facts['training_return'])}",
        "belief": _belief(facts),
        "observations, actions": f"{facts['observation_space']}, {facts['action_space']}",
        "licence": facts["licence"],
        "versions": ", ".join(f"{name} {versions[name]}" for name in SHOWN if name in versions),
    }
    table = "\n".join(f"| {name} | {_cell(text)} |" for name, text in rows.items() if text)
    picture = "\n![Mean return against environment steps](curve.png)\n" if curve else ""
    return f"""{_front_matter(facts)}
# {facts["method"]} on {facts["task"]}

An agent with a predictive state, trained with [rpsp](https://arxiv.org/abs/1803.01489).

| | |
|---|---|
{table}
{picture}
```python
import rpsp

agent = rpsp.load("{facts["file"]}")
action, state = agent.predict(observation, state=None)  # then pass the state on
```

The file holds arrays, settings and checksums. Nothing in it can run.
"""


def _returned(facts: Mapping[str, Any]) -> str:
    found = facts.get("evaluation")
    if found is None:
        return "not evaluated"
    return (
        f"{number(found['mean'])} (95 % interval of the mean {number(found['low'])} to {number(found['high'])}), "
        f"{found['episodes']} new episodes, most probable actions"
    )


def _belief(facts: Mapping[str, Any]) -> str:
    error, persistence = facts.get("prediction_error"), facts.get("persistence_error")
    if error is None or persistence is None:
        return ""
    return (
        f"one-step prediction error {error:.1e} of the variance in its last iteration (persistence {persistence:.1e})"
    )


def _front_matter(facts: Mapping[str, Any]) -> str:
    """Return the metadata of the card as YAML. Texts are quoted as JSON, which YAML reads."""
    import json

    lines = ["---", "library_name: rpsp", "pipeline_tag: reinforcement-learning"]
    if facts["licence"] != "unspecified":
        lines.append(f"license: {json.dumps(facts['licence'])}")
    lines += ["tags:", "- reinforcement-learning", "- partial-observability", f"- {json.dumps(facts['env'])}"]
    if (found := facts.get("evaluation")) is not None:
        lines += [
            "model-index:",
            f"- name: {json.dumps(facts['method'])}",
            "  results:",
            "  - task: {type: reinforcement-learning, name: reinforcement-learning}",
            f"    dataset: {{name: {json.dumps(facts['task'])}, type: {json.dumps(facts['env'])}}}",
            f'    metrics: [{{type: mean_reward, value: "{found["mean"]:.2f}", name: mean return}}]',
        ]
    return "\n".join([*lines, "---"])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
