#!/bin/sh
# From two CSV files to a prediction file, one command a stage. Usage: sh examples/demo.sh DIRECTORY
set -eu
data="$(dirname "$0")/topics"
out="${1:-demo}"
rm -rf "$out"
mkdir -p "$out"

say() { printf '\n\033[1m%s\033[0m\n' "$1"; }
run() { printf '$ %s\n' "$*"; "$@"; }

say "1. Turn an edge list and a table of nodes into a graph store"
run partita ingest "$data/citations.csv" "$out/graph" --nodes "$data/articles.csv" \
    --label-column topic --split-column split --undirected

say "2. Look at it"
run partita inspect "$out/graph"

say "3. Divide it among two parts, each owning one range of nodes"
run partita partition "$out/graph" "$out/parts" --parts 2

settings="--workers 2 --layers 2 --hidden 64 --fanout 10,10 --batch-size 64"

say "4. Find out which way of sharing the work between two workers is the fastest here"
run partita plan "$out/parts" $settings --out "$out/plan.json"

say "5. Train GraphSAGE on sampled mini-batches, as planned"
run partita train "$out/parts" --out "$out/run" $settings --plan "$out/plan.json" --epochs 15

say "6. Evaluate on the test nodes, with all their neighbours"
run partita evaluate "$out/run"

say "7. Predict the topic of every article, by its own id"
run partita predict "$out/run" --out "$out/predictions.csv"
head -n 5 "$out/predictions.csv"

say "8. Put all of it on one page"
run partita report "$out/run" "$out/parts" --out "$out/report.html"

say "Done. What to try next"
cat <<END
  partita train $out/graph --out $out/gat --model gat --layers 2 --epochs 15      another model
  partita generate sbm big --nodes 200000 && partita train big --out big-run      a bigger graph
  partita ingest YOUR_EDGES.csv graph --nodes YOUR_NODES.csv --label-column ...   your own data
  open $out/report.html in a browser                                             curves, times, who computed what
  tensorboard --logdir $out/run/events                                           curves (pip install tensorboard)
END
