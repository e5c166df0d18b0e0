"""Train, embed, search in memory, then search a vector store.

python examples/embed_and_search.py [FOLDER]     writes FOLDER/run and FOLDER/store; FOLDER must not exist yet
"""

import sys

import softtriple as st

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/embed_and_search"
store = f"{folder}/store"

# Same as: softtriple train digits --out FOLDER/run --epochs 10 --dim 16
run = st.train("digits", epochs=10, dim=16, out=f"{folder}/run")
print(f"R@1 {run.report.recall[1]:.3f}, MAP@R {run.report.map_at_r:.3f}")

run = st.Run.load(f"{folder}/run")  # what another program would start with
test = run.benchmark().test
vectors = run.encoder.embed(test.items.values)  # encoders for images take paths or arrays, those for texts strings
neighbors = st.nearest(vectors, vectors, k=5, exclude_self=True)
for row in range(3):
    print(f"item {row}, a {test.labels[row]}: its neighbours are {test.labels[neighbors.rows[row]].tolist()}")

# Same as: softtriple index FOLDER/run digits --store FOLDER/store --split test
#          softtriple search FOLDER/run row:0 --store FOLDER/store -k 5
indexed = run.index("digits", store, part="test")
print(f"{indexed.items} items of {indexed.classes} classes in {store}")
for hit in run.search(["row:0"], store, k=5)[0]:
    print(f"{hit.score:.3f}  {hit.item.class_name}")
