"""A question to a model that runs in a cell without a network device.

The model is small: its answers show that the path works, not what a model can do.
"""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def capital() -> Task:
    """One question with a short answer."""
    question = "What is the capital of France? Answer with one word."
    return Task(
        dataset=[Sample(id="capital", input=question, target="Paris")],
        solver=generate(max_tokens=24, temperature=0, seed=1),
        scorer=includes(),
        sandbox=("belljar", "low"),
    )
