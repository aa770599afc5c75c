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
        print(grain is gristmill, pygrain is gristmill.python, transforms is gristmill.transforms)
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
        for name in ("", ".checkpoint", ".constants", ".experimental", ".multiprocessing", ".python",
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


def test_private_modules_of_grain_are_not_found():
    assert run(
        """
        import gristmill
        gristmill.install_as_grain()
        import importlib
        for name in ("grain._src", "grain.core", "grain.no_such_module", "grainy"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                print(error.name)
        """
    ) == ["grain._src", "grain.core", "grain.no_such_module", "grainy"]


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
        print(grain is gristmill)
        """,
        str(tmp_path),
    ) == ["True"]
