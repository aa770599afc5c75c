"""Random pipelines over the whole Dataset API, as expressions that ``peer_driver.py`` can evaluate.

Names in quotation marks in comments are deviations from Grain, listed in ``test_peer.py``, that the
pipelines stay away from.
"""

import dataclasses
import math
import random
import re
import sys

ENDLESS = sys.maxsize

# Elements by name, as in the driver. Those of "rows" kinds have a first axis of one length in all
# leaves.
_NUMBERS = ["int", "int", "int", "float", "int32", "float32", "int_or_float", "scalar_array"]
_TREES = [
    "array",
    "dict",
    "tuple",
    "nested",
    "list",
    "named",
    "ordered",
    "matrix",
    "str",
    "bytes",
    "bool",
    "uint8",
    "no_bytes",
]
_ROWS = ["array", "matrix", "rows"]
_SEQUENCES = ["tokens", "sequences", "holes"]


@dataclasses.dataclass(frozen=True)
class Node:
    """A dataset: its code, and what has to be known to build upon it.

    Facts: "sparse" (there are indices, or elements of an iterator, without an element), "gaps"
    (that an iterator skips), "filtered" (in a way that Grain's batch sees), "random" (reads
    no negative or huge index), "seeded" (there is a default seed), "counting" (an iterator numbers
    elements), "empty" (there may be no element at all), "failing" (elements may raise),
    "interleaved", "threads", "repeated" (an interleave is), "ends" (the state at the end may be
    another one).
    """

    code: str
    is_map: bool = True
    form: str = "int"  # how elements look, with `mixed` in it if not all alike
    length: int = 0  # of an epoch; 0 or ENDLESS for an iterator
    facts: frozenset[str] = frozenset()
    # the fewest datasets of an interleave: more threads than that cannot share it
    num_sliced: int = ENDLESS

    def within(self, code, *facts, without=(), **changes):
        """A dataset over this one, written ``<0>`` in its code."""
        facts = (self.facts | set(facts)) - set(without)
        return dataclasses.replace(
            self, code=code.replace("<0>", self.code), facts=facts, **changes
        )

    def then(self, code, *facts, **changes):
        return self.within("<0>" + code, *facts, **changes)

    @property
    def is_endless(self):
        return self.length == ENDLESS

    @property
    def is_uniform(self):
        """True if default batches can be made of it."""
        return (
            "mixed" not in self.form and self.form not in _SEQUENCES and "sparse" not in self.facts
        )

    @property
    def has_rows(self):
        return self.form.startswith("[") or self.form in _ROWS


class Pipelines(random.Random):
    """Makes pipelines at random."""

    described = False  # whether element specs can be determined of most of what is being made
    long = False  # whether the datasets that are being made are, which are not to be searched

    def one_of(self, *options):
        return self.choice(options)

    def chance(self, probability):
        return self.random() < probability

    def seed_number(self):
        return self.one_of(0, 1, 42, self.randint(10**7, 2**32 - 10**7), 2**32 - 1)

    def several(self, make, depth, kind, most=3):
        """Datasets to be put together: often of one kind, as only those can be batched."""
        if kind is None and self.chance(0.7):
            kind = self.choice([*_NUMBERS, *_TREES, *_SEQUENCES])
        return [make(depth - 1, kind) for _ in range(self.one_of(1, 2, 2, most, most))]

    @staticmethod
    def joined(code, nodes, *facts, **changes):
        found = frozenset().union(*[node.facts for node in nodes])
        forms = {node.form for node in nodes}
        defaults = {
            "is_map": nodes[0].is_map,
            "form": forms.pop() if len(forms) == 1 else "mixed",
            "num_sliced": min(node.num_sliced for node in nodes),
            "facts": found | set(facts),
        }
        for i, node in enumerate(nodes):
            code = code.replace(f"<{i}>", node.code)
        return Node(code, **{**defaults, **changes})

    # Map datasets

    def source(self, kind=None):
        if self.described:
            kind = "range"
        kind = kind or self.one_of(
            "range", *_NUMBERS, *_TREES, *_SEQUENCES, "rows", "sometimes_none"
        )
        # Not many, as Grain's shuffle of n elements takes about 20 ms / n per element.
        length = self.one_of(
            self.randint(0, 6), self.randint(1, 40), self.randint(5, 40), self.randint(40, 200)
        )
        length = self.randint(400, 90_000) if self.long else length
        if kind == "range":
            bounds = self.one_of((length,), (0, length), (3, 3 + length, 2), (length, -4, -3))
            return Node(
                f"M.range{bounds if len(bounds) > 1 else f'({length})'}", length=len(range(*bounds))
            )
        facts = {"sparse"} if kind == "sometimes_none" else set()
        form = "int" if kind in ("int", "sometimes_none") else kind
        return Node(
            f'M.source(Source("{kind}", {length}))',
            form=form,
            length=length,
            facts=frozenset(facts),
        )

    def map_dataset(self, depth=2, kind=None, most=4):
        node = (
            self.map_combination(depth, kind) if depth and self.chance(0.35) else self.source(kind)
        )
        for _ in range(self.randint(0, most)):
            node = self.map_step(node)
        return node

    def map_combination(self, depth, kind):
        nodes = self.several(self.map_dataset, depth, kind)
        codes = ", ".join(f"<{i}>" for i in range(len(nodes)))
        lengths = [node.length for node in nodes]
        name = self.one_of("mix", "mix", "concatenate", "select", "zip")
        if name == "mix":
            weights = self.weights(nodes)
            return self.joined(
                f"M.mix([{codes}], {weights})",
                nodes,
                length=mixed_length(lengths, weights or [1] * len(nodes)),
            )
        if name == "concatenate":
            return self.joined(
                f"M.concatenate([{codes}])", nodes, length=0 if ENDLESS in lengths else sum(lengths)
            )
        if name == "select":
            length = self.randint(1, 30)
            pairs = [(self.randrange(len(nodes)), self.randint(0, 20)) for _ in range(length)]
            turns, fact = self.one_of((f"Turns({len(nodes)}, {length})", []), (pairs, ["failing"]))
            return self.joined(
                f"M.select_from_datasets([{codes}], {turns})", nodes, *fact, length=length
            )
        if self.chance(0.95):
            length = min(lengths)
            nodes = [
                node if node.length == length else node.then(f"[:{length}]", length=length)
                for node in nodes
            ]
        # Grain keeps the tuples of which a part is missing, and so do we.
        parts = ["mixed" if "sparse" in node.facts else node.form for node in nodes]
        # we do not look whether there really are: "indices_with_gaps"
        gaps = ["gaps"] * ("mixed" in parts)
        zipped = self.joined(
            f"x.ZipMapDataset([{codes}])",
            nodes,
            *gaps,
            form=f"({','.join(parts)})",
            length=min(lengths),
        )
        return dataclasses.replace(zipped, facts=zipped.facts - {"sparse"})

    def weights(self, nodes):
        return self.one_of(
            None, [self.one_of(1, 2, 0.5, 0.1, 3.7, self.random() + 0.01) for _ in nodes]
        )

    def step(self, node, kind, names):
        name = self.choice(names.split())
        if name == "filter" and node.is_endless:  # which might search forever
            return node
        made = getattr(self, f"{kind}_{name}", None)
        return made(node) if made else self.element_step(node, name)

    def map_step(self, node):
        names = (
            "map map_with_index random_map seed filter apply batch batch flat_map slice slice"
            " repeat shuffle shuffle"
        )
        return self.step(node, "map", names + " window_shuffle")

    def map_shuffle(self, node):
        # "shuffle_of_2**k+1"; far away, Grain cannot make the random generators and seeds.
        if is_odd_length(node.length) or (node.is_endless and "random" in node.facts):
            return node
        return node.then(f".shuffle({self.maybe_seed(node)})")

    def map_window_shuffle(self, node):
        # "map_window_shuffle"
        sizes = [
            size for size in range(1 if node.length < 20 else 4, 60) if node.length % size == 0
        ]
        if node.is_endless or not sizes:
            return node
        seed = self.randint(10**7, 2**32 - 10**7)
        return node.within(
            f"x.WindowShuffleMapDataset(<0>, window_size={self.choice(sizes)}, seed={seed})",
            "random",
        )

    def maybe_seed(self, node):
        # "seeds_before_threads"
        is_left_out = "threads" not in node.facts and self.chance(
            0.7 if "seeded" in node.facts else 0.03
        )
        return "" if is_left_out else f"seed={self.seed_number()}"

    def element_step(self, node, name):
        """A stage that processes elements one by one, that both kinds of dataset have."""
        if name == "map":
            facts = {"fail_sometimes": ["failing"], "none_of_three": ["sparse"]}
            fn = (
                "Described()"
                if self.described
                else self.one_of("plus_one", "plus_one", "PlusOne()", "Described()", *facts)
            )
            return (
                node
                if fn == "none_of_three" and node.is_endless
                else node.then(f".map({fn})", *facts.get(fn, ()))
            )
        if name == "map_with_index":
            return node.then(
                f".map_with_index({self.one_of('plus_index', 'PlusIndex()')})", "counting"
            )
        if name == "random_map":
            fn, form = self.one_of(
                ("plus_random", node.form),
                ("with_random", f"r{node.form}"),
                ("PlusRandom()", node.form),
            )
            seed = self.maybe_seed(node)
            return node.then(f".random_map({fn}{', ' * bool(seed)}{seed})", "random", form=form)
        if name == "seed":
            return node.then(f".seed({self.one_of(0, 42, 2**32, self.getrandbits(70))})", "seeded")
        if name == "filter":
            fn = self.one_of("keep_odd", "keep_most", "KeepMost()", "keep_few")
            return node.then(
                f".filter({fn})", "filtered", "empty", *(["sparse"] if node.is_map else [])
            )
        assert name == "apply", name
        kinds = {"PlusOne()": (), "PlusIndex()": ("counting",), "MapAndFilter()": ()}
        if not node.is_endless:
            kinds["KeepMost()"] = ("filtered", "empty", *(["sparse"] if node.is_map else []))
        if "seeded" in node.facts and "threads" not in node.facts:
            kinds |= dict.fromkeys(["PlusRandom()", "RandomAndFilter()"], ("random",))
        parts = self.choices([*kinds], k=self.randint(0, 3))
        facts = {fact for part in parts for fact in kinds[part]}
        return node.then(
            f".apply([{', '.join(parts)}])" if len(parts) != 1 else f".apply({parts[0]})", *facts
        )

    def map_slice(self, node):
        bounds = self.one_of((0, 20, 1), (5, 60, 7), (None, 9, None), (3, 3, 1))
        if not node.is_endless and self.chance(0.8):
            others = [
                (0, None, 2),
                (1, None, 3),
                (None, None, -1),
                (3, -1, 1),
                (-9, None, 2),
                (8, None, -2),
                (None, -1, None),
            ]
            bounds = self.one_of(
                (self.randint(-30, 30), self.randint(-30, 30), self.one_of(-2, -1, 1, 2, 3)),
                *others,
            )
        length = len(range(*slice(*bounds).indices(node.length)))
        text = self.one_of(
            f".slice(slice{bounds})",
            "[" + ":".join("" if b is None else str(b) for b in bounds) + "]",
        )
        return node.then(text, length=length)

    def map_repeat(self, node):
        if node.is_endless and self.chance(0.9):  # which may not be repeated
            return node
        if self.chance(0.25) and not node.facts & {"sparse", "failing"}:
            length = ENDLESS if node.length else 0
            return node.then(
                self.one_of(".repeat()", ".repeat(None, reseed_each_epoch=False)"), length=length
            )
        count, reseed = self.one_of(1, 2, 3), self.one_of("", ", reseed_each_epoch=False")
        return node.then(f".repeat({count}{reseed})", length=min(ENDLESS, count * node.length))

    def map_flat_map(self, node):
        fan = self.one_of(1, 2, 3, 4)
        kind, form = self.one_of(
            ("Copies", node.form), ("Generated", node.form), ("Numbered", f"n{node.form}")
        )
        if node.is_endless:
            return node
        # more than it says
        most, fact = self.one_of(*[("", "empty")] * 19, (f", most={fan + 2}", "failing"))
        code = self.one_of(
            f"<0>.apply({kind}({fan}{most}))", f"x.FlatMapMapDataset(<0>, {kind}({fan}{most}))"
        )
        return node.within(code, "filtered", "sparse", fact, form=form, length=fan * node.length)

    def batch_code(self, node):
        size, drop = self.randint(1, 7), self.chance(0.3)
        fn, form = None, f"[{node.form}]"
        if not node.is_uniform or self.chance(0.15):
            fn, form = "batch_length", "int"
        elif self.chance(0.2):
            # "lossy_padding"
            fn = f"partial(x.batch_and_pad, batch_size={size}, pad_value={self.one_of(0, 1)})"
        options = ", drop_remainder=True" * drop + (f", batch_fn={fn}" if fn else "")
        if self.chance(0.2):
            return size, drop, f".apply(t.Batch({size}{options}))", form
        return size, drop, f".batch({size}{options})", form

    def map_batch(self, node):
        # "batches_of_unlike_elements", "endless_batches"
        if node.is_endless or (
            "sparse" in node.facts and not (self.chance(0.03) and "filtered" in node.facts)
        ):
            return node
        size, drop, code, form = self.batch_code(node)
        length = node.length // size if drop else -(-node.length // size)
        return node.then(code, "failing", form=form, length=length)

    # Iter datasets

    def read(self):
        return self.one_of(
            "",
            "m.ReadOptions(0, 0)",
            "m.ReadOptions(0, 0)",
            "m.ReadOptions(1, 1)",
            "m.ReadOptions(2, 7)",
        )

    def converted(self, node):
        """An iterator over a map dataset."""
        read = self.read()
        changes = {"is_map": False, "length": ENDLESS if node.is_endless else 0}
        empty = ["empty"] if not node.length or "sparse" in node.facts else []
        empty += ["gaps"] * ("sparse" in node.facts)
        without = {"sparse", "filtered", "counting", "random"}
        if "sparse" in node.facts and self.chance(0.3):
            read += ", " * bool(read) + "allow_nones=True"
            return node.then(f".to_iter_dataset({read})", without=without - {"sparse"}, **changes)
        return node.then(f".to_iter_dataset({read})", *empty, without=without, **changes)

    def iter_dataset(self, depth=2, kind=None, most=4):
        if depth and self.chance(0.45):
            node = self.iter_combination(depth, kind)
        else:
            node = self.converted(self.map_dataset(max(0, depth - 1), kind, most=3))
        for _ in range(self.randint(0, most)):
            node = self.iter_step(node)
        return node

    def iter_combination(self, depth, kind):
        name = self.one_of("mix", "mix", "zip", "interleave", "interleave")
        if name == "interleave":
            return self.interleave(depth, kind)
        nodes = self.several(self.iter_dataset, depth, kind)
        codes = ", ".join(f"<{i}>" for i in range(len(nodes)))
        lengths = [node.length for node in nodes]
        empty = ["empty"] * any("empty" in node.facts for node in nodes)
        length = ENDLESS if min(lengths) == ENDLESS else 0
        if name == "zip":
            strict = self.chance(0.4)
            parts = ["mixed" if "sparse" in node.facts else node.form for node in nodes]
            code = f"x.ZipIterDataset([{codes}], strict={strict})"
            zipped = self.joined(code, nodes, *empty, form=f"({','.join(parts)})", length=length)
            return dataclasses.replace(
                zipped, facts=zipped.facts - {"sparse"} | {"failing" if strict else "ends"}
            )
        weights, codes = self.weights(nodes), f"[{codes}]"
        if self.chance(0.3):
            names = self.sample("abcd", len(nodes))
            codes = "{" + ", ".join(f"'{name}': <{i}>" for i, name in enumerate(names)) + "}"
            weights = weights and dict(sorted(zip(names, weights, strict=True)))
        return self.joined(f"I.mix({codes}, {weights})", nodes, *empty, length=length)

    def interleave(self, depth, kind):
        def make(*args):  # datasets of map kind are read with 16 threads each
            return self.one_of(self.iter_dataset, self.iter_dataset, self.map_dataset)(*args)

        nodes = self.several(make, depth, kind, most=4)
        options = [f"cycle_length={self.randint(1, 5)}"]
        for option in ("num_make_iter_threads", "make_iter_buffer_size", "iter_buffer_size"):
            options += [f"{option}={self.one_of(0, 2)}"] * self.chance(0.25)
        num_datasets = len(nodes)
        if self.chance(0.6):
            datasets = f"[{', '.join(f'<{i}>' for i in range(len(nodes)))}]"
        else:
            datasets = f"M.source([{', '.join(f'lambda: <{i}>' for i in range(len(nodes)))}])"
            datasets += self.one_of("", f".shuffle(seed={self.seed_number()})")
            if self.chance(0.2):
                datasets, num_datasets = datasets + ".repeat(2)", 2 * num_datasets
            datasets += ".map(call)"
        kept = {"failing", "gaps", "ends", "threads", "repeated", "counting"} & set().union(
            *[node.facts for node in nodes]
        )
        kept |= {"sparse"} & set().union(*[node.facts for node in nodes if not node.is_map])
        facts = frozenset({"empty", "interleaved"} | kept)
        length = ENDLESS if any(n.is_endless for n in nodes) else 0
        code = f"x.InterleaveIterDataset({datasets}, {', '.join(options)})"
        # It has no parents, so seeds do not pass through it.
        return self.joined(
            code, nodes, is_map=False, facts=facts, length=length, num_sliced=num_datasets
        )

    def iter_step(self, node):
        names = (
            "map map_with_index random_map seed filter apply batch batch flat_map rebatch repeat"
            " limit cache window_shuffle"
        )
        return self.step(
            node, "iter", names + " thread_prefetch multithread_prefetch pack pack split options"
        )

    def iter_batch(self, node):
        _, _, code, form = self.batch_code(node)
        return node.then(code, "failing", "empty", without={"sparse"}, form=form)

    def iter_flat_map(self, node):
        if "sparse" in node.facts or node.is_endless:  # "missing_elements_of_flat_maps"
            return node
        fan = self.randint(1, 4)
        kind, form = self.one_of(("Copies", node.form), ("Numbered", f"n{node.form}"))
        code = self.one_of(f"<0>.apply({kind}({fan}))", f"x.FlatMapIterDataset(<0>, {kind}({fan}))")
        return node.within(code, "empty", "ends", form=form)

    def iter_rebatch(self, node):
        if not node.has_rows or not node.is_uniform:
            return node
        drop = self.one_of("", ", drop_remainder=True")
        return node.within(
            f"x.RebatchIterDataset(<0>, {self.randint(1, 9)}{drop})", "failing", "empty", "ends"
        )

    def iter_repeat(self, node):
        if "DatasetOptions" in node.code:  # "counts_of_empty_epochs"
            return node
        # "third_epoch_of_interleave", "caches_of_interleaved_datasets"
        if "interleaved" in node.facts:
            if "CacheIterDataset" in node.code:
                return node
            return node.within(f"x.RepeatIterDataset(<0>, {self.one_of(1, 2)})", "repeated")
        if not node.facts & {"empty", "failing"} and self.chance(0.3):
            return node.within("x.RepeatIterDataset(<0>)", length=ENDLESS)
        return node.within(f"x.RepeatIterDataset(<0>, {self.one_of(1, 2, 3)})")

    def iter_limit(self, node):
        count = self.one_of(1, 3, 10, 25)
        code = self.one_of(
            f"<0>.pipe(x.LimitIterDataset, count={count})", f"x.LimitIterDataset(<0>, {count})"
        )
        return node.within(code, length=0)

    def iter_cache(self, node):
        if "CacheIterDataset" in node.code:  # "caches_in_caches"
            return node
        node = node.within("x.CacheIterDataset(<0>)")
        return self.iter_repeat(node) if self.chance(0.6) else node

    def iter_window_shuffle(self, node):
        seed = self.randint(0, 2**32 - 10**7)
        return node.within(
            f"x.WindowShuffleIterDataset(<0>, window_size={self.randint(3, 20)}, seed={seed})",
            "ends",
        )

    def iter_thread_prefetch(self, node):
        return node.within(
            f"x.ThreadPrefetchIterDataset(<0>, prefetch_buffer_size={self.one_of(0, 1, 3)})"
        )

    def iter_multithread_prefetch(self, node):
        # "map_with_index_in_threads", "threads_in_threads", "fewer_datasets_than_threads"
        count = self.randint(0, 3)
        if node.facts & {"counting", "threads"} or count > node.num_sliced:
            return node
        # nothing forever: a share may be empty, and Grain hangs then
        if node.is_endless and "x.RepeatIterDataset" in node.code:
            return node
        code = (
            f"x.multithread_prefetch(<0>, num_threads={count}, buffer_size={self.one_of(0, 1, 2)}"
        )
        # "parts_of_what_has_a_length"
        whole = (
            "slice|repeat|\\[|atch|mix|select|concatenate|Copies|Numbered|Generated|Zip|Window"
            "|Interleave"
        )
        sequential = self.chance(0.3) and not re.search(whole, node.code)
        code += ", sequential_slice=True)" if sequential else ")"
        if not count:
            return node.within(code)
        return node.within(code, "interleaved", "threads", "empty", without={"seeded"})

    def iter_options(self, node):
        ratio = self.one_of(None, 0.5, 0.97, 1.0)
        # "options_above_interleave", "counts_of_empty_epochs"
        if "interleaved" in node.facts or "RepeatIterDataset" in node.code:
            return node
        return node.within(
            f"x.WithOptionsIterDataset(<0>, x.DatasetOptions(filter_raise_threshold_ratio={ratio}))"
        )

    def iter_pack(self, node):
        if node.form not in _SEQUENCES or "sparse" in node.facts:
            return node
        features = {"a": self.one_of(*[9, 9, 10, 16, 20] * 4, 7)}  # the last is too short for some
        options = {}
        if node.form == "sequences":
            features |= {"b": self.one_of(5, 6, 11)} if self.chance(0.7) else {}
            features |= {"m": self.one_of(3, 8)} if self.chance(0.3) else {}
            options["meta_features"] = self.one_of((), (), ("m",), ("b", "m"))
        options["shuffle_bins"] = self.chance(0.6)
        others = {
            "shuffle_bins_group_by_feature": self.choice(sorted(features)),
            "seed": self.seed_number(),
            "pack_alignment_struct": {name: self.one_of(1, 2, 3) for name in features},
            "padding_struct": {name: self.one_of(None, 7, -1) for name in features},
            "max_sequences_per_bin": self.randint(1, 4),
        }
        options |= {name: value for name, value in others.items() if self.chance(0.35)}
        text = "".join(f", {key}={value!r}" for key, value in options.items())
        # "full_bins_of_nothing"
        kind = (
            "FirstFit"
            if node.form == "holes" and "max_sequences_per_bin" in options
            else self.one_of("FirstFit", "BestFit")
        )
        code = (
            f"x.{kind}PackIterDataset(<0>, length_struct={features},"
            f" num_packing_bins={self.randint(1, 6)}{text})"
        )
        return node.within(
            code, "failing", "ends", form="packed" if not options.get("meta_features") else "mixed"
        )

    def iter_split(self, node):
        if node.form not in _SEQUENCES or "sparse" in node.facts:
            return node
        names = (
            ["a"]
            if node.form != "sequences"
            else self.one_of(["a"], ["b"], ["a", "b"], ["a", "m"], ["a", "b", "m"])
        )
        # "second_cut_of_several_features"
        targets = {"a": self.one_of(9, 12, 20), "b": self.one_of(5, 8), "m": self.one_of(1, 3, 9)}
        if len(names) == 1:
            targets = {"a": self.one_of(1, 3, 6, 9, 30), "b": self.one_of(1, 2, 5, 9)}
        node = (
            node.then(f".map(only{tuple(names)})")
            if len(names) > 1
            else node.then(f'.map(only("{names[0]}"))')
        )
        options = f"length_struct={ {name: targets[name] for name in names} }"
        if "m" in names:
            options += ", meta_features=('m',)"
        if self.chance(0.4):
            options += f", split_full_length_features={self.chance(0.3)}"
        # "first_tokens_of_empty_pieces"
        if len(names) == 1 and node.form != "holes" and self.chance(0.3):
            options += ", bos_handling=x.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS, bos_token_id=99"
            options += f", bos_features={self.one_of((), names)}"
        return node.within(f"x.ConcatThenSplitIterDataset(<0>, {options})", "ends", form="packed")

    # Descriptions for the driver

    def map_spec(self):
        long = self.long = self.chance(0.15)
        node = self.map_dataset(depth=2, most=5)
        self.long, length = False, node.length
        indices = [0, 1, 5, 49, 1000]
        if not node.is_endless:
            indices = [0, 1, length - 1, length, 2 * length + 1, -1, -1 - length]
            indices += [self.randrange(3 * length) for _ in range(3 if length else 0)]
        # Iteration has 16 threads by default.
        return self.spec(node, indices, 0 if long else self.one_of(0, 0, 12))

    def iter_spec(self):
        return self.spec(self.iter_dataset(depth=2), [], self.one_of(3, 12, 12, 40))

    def spec(self, node, indices, limit):
        # Batches of batches of batches may be thousands of elements.
        sizes = [
            int(size)
            for size in re.findall(r"atch\((\d)|batch_size=(\d)", node.code)
            for size in size
            if size
        ]
        limit = min(limit, 3) if math.prod(sizes) > 40 else limit
        spec = {
            "kind": "dataset",
            "code": node.code,
            "indices": indices,
            "limit": limit,
            "extras": self.chance(0.3),
        }
        return {**spec, "facts": sorted(node.facts), "length": node.length}

    def threshold_spec(self):
        """Filters that drop almost everything, of more than a thousand elements."""
        length = self.randint(1500, 4000)
        rare = f"lambda v: total(v) % 997 == {self.randint(1, 600)}"
        step = f".filter({self.one_of('keep_few', 'keep_odd', rare)})"
        node = Node(f"M.range({length})", length=length)
        node = (
            self.converted(node.then(step, "sparse"))
            if self.chance(0.5)
            else self.converted(node).then(step)
        )
        mixed = self.joined(
            "I.mix([<0>, <1>], [3, 1])", [node, self.converted(self.source("range"))]
        )
        node = self.one_of(node, mixed, self.iter_batch(node))
        ratio = self.one_of(0.5, 0.9, 0.96, 0.999, 1, 0, None)
        node = node.within(
            f"x.WithOptionsIterDataset(<0>, x.DatasetOptions(filter_raise_threshold_ratio={ratio}))"
        )
        node = node.then(".map(plus_one)") if self.chance(0.3) else node
        # The elements seen since the last judgement are not part of the state.
        return {**self.spec(node, [], 60), "restores": False}

    def loader_spec(self, num_workers=0):
        operations = []
        for _ in range(self.randint(0, 4)):
            size = f"{self.randint(1, 6)}, {self.chance(0.4)}"
            operation = self.one_of(
                *[
                    "PlusOne()",
                    "PlusRandom()",
                    "PlusTfRandom()",
                    "KeepMost()",
                    "MapAndFilter()",
                    "RandomAndFilter()",
                ],
                *[
                    "every_third_not",
                    "python.MapOperation(plus_one)",
                    "python.RandomMapOperation(with_random)",
                ],
                *["python.FilterOperation(keep_odd)", f"python.BatchOperation({size})"],
                *[
                    f"t.Batch({size})",
                    f"t.Batch({size}, batch_fn=batch_length)",
                    "Copies(3)",
                    "Numbered(2)",
                    "Generated(4)",
                ],
            )
            if "Random" not in operation or not re.search(
                "Copies|Numbered|Generated", str(operations)
            ):
                operations.append(operation)  # "random_maps_after_flat_maps"
        # which may drop all
        long = self.chance(0.5) and not re.search("Filter|Keep", str(operations))
        length = self.randint(400, 90_000) if long else self.randint(1, 40)
        count, drop = self.one_of(1, 1, 2, 3, 5), self.chance(0.5)
        # "remainder_of_shards"
        length = max(count, length if drop else -(-length // count) * count)
        shard = f"m.sharding.ShardOptions({self.randrange(count)}, {count}, {drop})"
        shard = "m.sharding.NoSharding()" if count == 1 and self.chance(0.7) else shard
        epochs = self.one_of(1, 1, 2, 3, *([] if operations else [None]))
        own = f"{self.one_of('Backwards', 'BackwardsWithLength')}({length})"
        index = (
            f"m.samplers.IndexSampler({length}, {shard}, {self.chance(0.6)}, {epochs},"
            f" {self.seed_number()})"
        )
        sampler = self.one_of(
            own,
            index,
            index,
            index,
            f"m.samplers.SequentialSampler({length}, {shard}, {self.seed_number()})",
        )
        options = f", shard_options={shard}" * (sampler == own or self.chance(0.3))
        if read := self.read():
            options += f", read_options={read}"
        if num_workers:
            options += f", worker_count={num_workers}"
        kind = self.one_of(
            "int", "float", "int32", "float32", "array", "dict", "tuple", "nested", "str"
        )
        if "Batch" not in str(operations):  # "batches_of_unlike_elements"
            kind = self.one_of(kind, "sometimes_none", "int_or_float", "int8_or_uint8")
        # A source may be shorter or longer than the sampler says.
        source = f'Source("{kind}", {self.one_of(length, length, max(1, length - 1), length + 3)})'
        code = (
            f"m.DataLoader(data_source={source}, sampler={sampler},"
            f" operations=[{', '.join(operations)}]{options})"
        )
        return self.spec(Node(code, is_map=False, facts=frozenset({"ends"})), [], 15)

    def workers_spec(self):
        """A pipeline with worker processes."""
        if self.chance(0.4):
            return self.loader_spec(self.randint(1, 2))
        while True:
            node = self.iter_dataset(depth=1)
            # "map_with_index_in_threads", and what holds for threads above; in batches of workers
            # all is of the first's dtype
            if (
                not node.facts & {"counting", "failing", "interleaved"}
                and "int_or_float" not in node.code
            ):
                break
        count = self.randint(1, min(2, node.num_sliced))
        return self.spec(
            node.then(f".mp_prefetch(m.MultiprocessingOptions({count}))", "interleaved"), [], 12
        )

    def files_spec(self):
        """Returns an interleave in two workers, each of fewer streams than slots, maybe."""
        lengths = [self.randint(1, 5) for _ in range(self.randint(2, 4))]
        streams = ", ".join(f"lambda: M.range({length}).to_iter_dataset()" for length in lengths)
        code = (
            f"x.InterleaveIterDataset(M.source([{streams}]).map(call),"
            f" cycle_length={self.randint(2, 4)})"
        )
        if self.chance(0.5):
            code = f"x.WindowShuffleIterDataset({code}, window_size=3, seed=1)"
        node = Node(f"{code}.batch(2).mp_prefetch(m.MultiprocessingOptions(2))", is_map=False)
        return self.spec(node, [], 6)

    def rows_spec(self):
        """Packed, split or rebatched elements."""
        make = self.one_of(
            self.iter_pack, self.iter_pack, self.iter_split, self.iter_rebatch, self.iter_rebatch
        )
        kinds = [*_NUMBERS, *_TREES, *_ROWS] if make == self.iter_rebatch else _SEQUENCES
        node = self.converted(
            self.map_dataset(self.one_of(0, 0, 1), kind=self.choice(kinds), most=2)
        )
        if make == self.iter_rebatch and (not node.has_rows or self.chance(0.5)):
            node = self.iter_batch(node)
        elif self.chance(0.2) and not node.is_endless:
            node = self.element_step(node, "filter")
        node = make(node)
        for _ in range(self.randint(0, 3)):
            node = self.iter_step(node)
        return self.spec(node, [], self.one_of(12, 40))

    def next_spec(self):
        makers = [self.map_spec] * 10 + [self.iter_spec] * 24 + [self.rows_spec] * 5
        makers += [self.loader_spec] * 12 + [self.threshold_spec]
        self.described = self.chance(0.1)
        return self.choice(makers)()


def mixed_length(lengths, weights):
    """As Grain computes it, with its rounding."""
    if min(lengths) == 0:
        return 0
    factor = 100 / min(weights)
    proportions = [int(weight * factor) for weight in weights]
    whole = sum(proportions)
    return int(
        min(
            ENDLESS,
            min(length / (p / whole) for length, p in zip(lengths, proportions, strict=True)),
        )
    )


def is_odd_length(length):
    """True if Grain's shuffle of this number of elements is the one that drops one."""
    k = (length - 1).bit_length() - 1
    return length > 2**16 and length - 1 == 2**k and k % 2 == 0
