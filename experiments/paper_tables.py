"""Results in the form of HumanLM's tables: response alignment by data set, then states in replies.

python experiments/paper_tables.py FOLDER ...        finished runs or comparisons
"""

import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from humanlm.core.basics import DataError, shorten
from humanlm.core.html import Table, aligned
from humanlm.core.stats import number_text
from humanlm.evaluation.measured import ALL, load_results


def paper_tables(
    folders: Sequence[str],  # finished runs or comparisons, one per data set
) -> str:  # markdown
    "Print results in the form of the published tables"
    means = defaultdict(dict)  # title → model → column → mean
    for folder in map(Path, folders):
        if not (folder / "results.json").is_file():
            raise DataError(f"{folder} holds no results. Let the run finish, or evaluate it.")
        for r in load_results(folder / "results.json").rows:
            if (r.metric, r.level) == ("response_alignment", ALL):
                title, column = "response alignment x 100", folder.name
            elif r.metric == "reply_state_alignment" and r.level != ALL:
                title, column = f"states in replies x 100: {folder.name}", r.level
            else:
                continue
            means[title].setdefault(r.model, {})[column] = 100 * r.mean
    tables = []
    for title, models in means.items():
        columns = list(dict.fromkeys(column for row in models.values() for column in row))
        values = {model: [row.get(c, math.nan) for c in columns] for model, row in models.items()}
        lines = [
            [shorten(model, 40), *(number_text(v, ".1f") for v in (*row, sum(row) / len(row)))]
            for model, row in values.items()
        ]
        tables.append(Table((title, *columns, "mean"), lines).markdown())
    return "\n\n".join(tables)


if __name__ == "__main__":
    print(aligned(paper_tables(sys.argv[1:])))
