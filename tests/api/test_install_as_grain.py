import subprocess
import sys
import textwrap


def run(script: str, *arguments: str) -> list[str]:
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(script), *arguments], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    return process.stdout.splitlines()


def test_code_written_for_grain_runs():
    assert run(
        """
        import gristmill
        gristmill.install_as_grain()
        gristmill.install_as_grain()
        import grain
        import grain.python as pygrain
        from grain import transforms
        from grain.python import experimental
        from grain.python.experimental import index_shuffle
        print(grain.MapDataset is gristmill.MapDataset, pygrain is gristmill.python, transforms is gristmill.transforms)
        print(experimental is gristmill.python.experimental, index_shuffle is gristmill.experimental.index_shuffle)
        print([batch.tolist() for batch in grain.load([1, 2, 3], num_epochs=1, batch_size=2)])
        """
    ) == ["True True True", "True True", "[[1, 2], [3]]"]


def test_every_public_module_is_the_same_under_both_names():
    script = """
        import importlib, sys
        import gristmill
        gristmill.install_as_grain()
        first, second = sys.argv[1:]
        for name in (".checkpoint", ".constants", ".experimental", ".monitoring", ".multiprocessing", ".python",
                     ".python.experimental", ".samplers", ".sharding", ".sources", ".transforms"):
            one, other = importlib.import_module(first + name), importlib.import_module(second + name)
            assert one is other, name
            assert one.__name__ == one.__spec__.name == "gristmill" + name, one.__spec__
            assert sys.modules["grain" + name] is sys.modules["gristmill" + name]
        print("the same")
    """
    assert run(script, "grain", "gristmill") == ["the same"]
    assert run(script, "gristmill", "grain") == ["the same"]


def test_pickles_and_reloads_keep_our_names():
    assert run(
        """
        import importlib, pickle
        import gristmill
        gristmill.install_as_grain()
        import grain.python
        import grain.samplers
        sampler = grain.samplers.IndexSampler(5, shuffle=True, seed=1)
        text = pickle.dumps(sampler)
        print(b"gristmill" in text, repr(pickle.loads(text)) == repr(sampler))
        for module in (grain.constants, grain.python, grain):
            name = module.__name__
            print(importlib.reload(module).__name__ == name == module.__spec__.name)
        print(pickle.dumps(grain.Record).decode("latin1").count("gristmill"))
        """
    ) == ["True True", "True", "True", "True", "1"]


def test_the_module_grain_has_the_names_and_version_of_the_matched_one():
    assert run(
        """
        import importlib.util
        import gristmill
        gristmill.install_as_grain()
        from absl import flags
        from grain import *
        import grain
        print(MapDataset is gristmill.MapDataset, experimental is gristmill.experimental, "diagnose" in dir(grain))
        print(grain.__version__, grain.__version_info__, gristmill.__version__ != grain.__version__)
        flags.FLAGS(["program", "--grain_py_debug_mode", "--grain_tf_lookup_batch_size=3"])
        print(grain.config.py_debug_mode, grain.config.tf_lookup_batch_size, grain.config.py_traceback_filtering)
        print([importlib.util.find_spec(f"grain.{name}") for name in ("no_such", "core")], hasattr(grain, "no_such"))
        grain.monitoring.Counter("name").IncrementBy(3)
        for name in ("grain.core", "grain.no_such_module", "grain.samplers.index", "grainy"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                print(error.name)
        """
    ) == [
        "True True True",
        "0.2.18 (0, 2, 18) True",
        "True 3 auto",
        "[None, None] False",
        *("grain.core", "grain.no_such_module", "grain.samplers.index", "grainy"),
    ]


def test_private_names_that_programs_use_are_public_objects_and_warn():
    assert run(
        """
        import importlib, operator, warnings
        import gristmill
        gristmill.install_as_grain()
        from gristmill.grain_src import _NAMES
        for path, names in _NAMES.items():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                module = importlib.import_module(f"grain._src.{path}")
                importlib.import_module(f"grain._src.{path}")
                for name, (public, where) in names.items():
                    found = getattr(module, name)
                    if public == f"{where.removeprefix('gristmill').removeprefix('.')}.{name}".lstrip("."):
                        assert found is operator.attrgetter(public)(gristmill), name
            (warning,) = [w for w in caught if "grain._src" in str(w.message)]
            assert warning.category is DeprecationWarning and "use " in str(warning.message)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from grain._src.core import tree
            from grain._src.python import data_loader
            from grain._src.python.dataset import dataset, stats
            from grain._src.python.dataset.transformations.prefetch import MultiprocessPrefetchIterDataset
        print(dataset.MapDataset is gristmill.MapDataset, data_loader._determine_worker_count(3))
        print(tree.flatten({"b": 1, "a": [2, None]}), tree.unflatten_as({"a": [2, None], "b": 1}, [3, 4]))
        print(tree.map_structure(lambda x, y: x + y, {"a": (1, 2)}, {"a": (3, 4)}), tree.flatten_with_path([5])[0][1])
        print(isinstance(gristmill.IterDataset.mp_prefetch, type), MultiprocessPrefetchIterDataset.__name__)

        class Mine(dataset.MapDataset):
            @stats.record_next_duration_if_output
            def __len__(self):
                return 2

            @stats.trace_input_pipeline(stage_category="mine")
            def __getitem__(self, index):
                with self._stats.record_self_time(num_elements=1):
                    return self._stats.record_output_spec(index)

        print(list(Mine()), stats.make_stats(stats.StatsConfig(name="x"), []).report())
        for name in ("grain._src.nothing", "grain._src.python.dataset.nothing"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                print(error.name, "What is public: grain.MapDataset" in str(error))
        try:
            dataset._Nothing
        except AttributeError as error:
            print("is private in Grain, and gristmill has of it only MapDataset" in str(error))
        try:
            tree.assert_same_structure([1], (1,))
        except ValueError as error:
            print(str(error).split(":")[0])
        """
    ) == [
        "True 3",
        "[2, 1] {'a': [3, None], 'b': 4}",
        "{'a': (4, 6)} 5",
        "False MultiprocessPrefetchIterDataset",
        "[0, 1] None",
        "grain._src.nothing True",
        "grain._src.python.dataset.nothing True",
        "True",
        "Structures are not the same",
    ]


def test_programs_that_cannot_be_edited(tmp_path):
    (tmp_path / "other.py").write_text("WORD = 'found beside it'\n")
    (tmp_path / "program.py").write_text(
        """
import sys
import grain
import other

def square(x):
    return x * x

if __name__ == "__main__":
    ds = grain.MapDataset.range(4).map(square).to_iter_dataset()
    print(grain.MapDataset.__module__, sys.argv[1:], other.WORD)
    print(list(ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=1))))
    sys.exit(3)
"""
    )
    for how in ([str(tmp_path / "program.py")], ["-m", "program"]):
        command = [sys.executable, "-m", "gristmill", "run-as-grain", *how, "--an-option", "x"]
        process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert process.returncode == 3, process.stderr
        assert process.stdout.splitlines() == [
            "gristmill.dataset.bases.map ['--an-option', 'x'] found beside it",
            "[0, 1, 4, 9]",
        ]


def test_it_refuses_politely_when_another_grain_is_there(tmp_path):
    (tmp_path / "grain").mkdir()
    (tmp_path / "grain" / "__init__.py").write_text("it_is = 'another grain'\n")
    lines = run(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        import grain
        import gristmill
        try:
            gristmill.install_as_grain()
        except RuntimeError as error:
            print(error)
        print(grain.it_is, any("gristmill" in type(finder).__module__ for finder in sys.meta_path))
        """,
        str(tmp_path),
    )
    assert len(lines) == 2
    for part in ("real grain has been imported already", str(tmp_path), "before the first import of grain"):
        assert part in lines[0]
    assert lines[1] == "another grain False"


def test_an_installed_grain_that_was_not_imported_does_not_matter(tmp_path):
    (tmp_path / "grain").mkdir()
    (tmp_path / "grain" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    assert run(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        import gristmill
        gristmill.install_as_grain()
        import grain.python
        print(grain.python is gristmill.python)
        """,
        str(tmp_path),
    ) == ["True"]
