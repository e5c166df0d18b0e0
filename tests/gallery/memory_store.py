"""A store in memory: the protocol of ``search/store.py`` by the plainest means, for tests of what is built on it."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from softtriple.search import Hit, Item, Stored


class MemoryStore:
    def __init__(self, items: Sequence[Item], vectors: np.ndarray, fingerprint: str = "test") -> None:
        self.fingerprint = fingerprint
        self.dim = vectors.shape[1]
        self._items: dict[str, Stored] = {}
        self._writes = 0
        self.put(items, vectors)

    def put(self, items: Sequence[Item], vectors: np.ndarray) -> None:
        self._writes += 1
        for item, vector in zip(items, vectors, strict=True):
            self._items[item.id] = Stored(item, np.asarray(vector, dtype=np.float32))

    def delete(self, ids: Sequence[str]) -> int:
        self._writes += 1
        return sum(self._items.pop(one, None) is not None for one in ids)

    def search(
        self, vectors: np.ndarray, k: int, *, classes: Sequence[str] = (), exact: bool = False
    ) -> list[list[Hit]]:
        among = [stored for stored in self._items.values() if not classes or stored.item.class_name in classes]
        found = []
        for query in vectors:
            hits = [Hit(stored.item, float(query @ stored.vector)) for stored in among]
            found.append(sorted(hits, key=lambda hit: -hit.score)[:k])
        return found

    def get(self, ids: Sequence[str]) -> list[Stored]:
        missing = [one for one in ids if one not in self._items]
        if missing:
            raise ValueError(f"not in the store: {', '.join(missing)}")
        return [self._items[one] for one in ids]

    def known(self, ids: Sequence[str]) -> dict[str, Item]:
        return {one: self._items[one].item for one in ids if one in self._items}

    def with_content(self, contents: Sequence[str]) -> list[Item]:
        return [stored.item for stored in self._items.values() if stored.item.content in contents]

    def scan(self, batch_size: int = 7) -> Iterator[tuple[list[Item], np.ndarray]]:
        stored = list(self._items.values())
        for start in range(0, len(stored), batch_size):
            part = stored[start : start + batch_size]
            yield [one.item for one in part], np.stack([one.vector for one in part])

    def classes(self) -> dict[str, int]:
        return dict(Counter(stored.item.class_name for stored in self._items.values()))

    def count(self) -> int:
        return len(self._items)

    def version(self) -> str:
        return str(self._writes)

    def build_index(self, kind: str = "auto") -> None:
        pass

    def close(self) -> None:
        pass
