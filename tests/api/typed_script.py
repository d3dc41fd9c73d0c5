"""A script that uses the public functions; mypy checks it with the strict options of the package."""

from pathlib import Path

import lra_bench

results = lra_bench.bench(["local", "performer"], "recall", seeds=range(3), overrides={"train.lr": 3e-4})
best: float | None = results.best.score()
rows: int = len(results.frame)
names: list[str] = lra_bench.list_models(causal=True)
first = results[0]
status: str = first.status
shorter: lra_bench.Results = results[:1]
for record in results:
    print(record.status, record.score())
weights = lra_bench.load_model(first).state_dict()
points = lra_bench.evaluate(first, [50], write=False)
pages: list[Path] = list(lra_bench.plot("ranks"))
print(lra_bench.leaderboard().shape, lra_bench.compare("local", "performer").shape, lra_bench.__version__)
print([finding.ok for finding in lra_bench.check("local")])
print(lra_bench.profile("local").shape, lra_bench.diff(first).shape)
try:
    lra_bench.load_records("nowhere", protocol="quick")
except lra_bench.UserError as error:
    print(error)

lra_bench.bench("local", "recall", seeds="0")  # type: ignore[arg-type]
lra_bench.plot(3)  # type: ignore[arg-type]
