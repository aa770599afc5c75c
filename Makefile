# `make` lists the targets. Python 3.11+ and make are needed beforehand, nothing else. Everything is
# installed below .venv and .peers; a target that has nothing to do is quick. Another Python than
# python3, in an environment of its own: `make test PYTHON=python3.13 VENV=.venv-3.13`.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# $(call install,FOLDER): installs into the environment FOLDER by uv: 15 seconds for what the tests
# need, where pip takes 3 minutes. One uv, in an environment of its own, serves all others, and makes
# each in a tenth of a second, where venv takes 3.
UV := .venv-uv/bin/uv
install = $(UV) pip install --quiet --python $(1)

# $(call install_torch,FOLDER): pip decides, by its settings, which build of PyTorch, and gets it once.
define install_torch
	@test -d .venv-uv/torch-$(TORCH) || $(PIP) download --quiet --no-deps --dest .venv-uv/torch-$(TORCH) torch==$(TORCH)
	$(call install,$(1)) --find-links .venv-uv/torch-$(TORCH) torch==$(TORCH)
endef
PIP := .venv-uv/bin/python -m pip --disable-pip-version-check

GRAIN := 0.2.18
TORCH := 2.13.0
ORBAX_OLDEST := 0.11.17
# Libraries that prepare data sets.
WRITERS := litdata==0.2.76 mosaicml-streaming==0.13.0 datasets==5.0.1
# Libraries that decode and transform images, and a loader of images.
IMAGES := jax==0.10.2 pillow==13.0.0 simplejpeg==1.9.0 spdl==0.8.0 torchvision==0.28.0 \
  albumentations==2.0.8 opencv-python-headless==4.14.0.94
# Libraries that use Grain and come with their tests, which tests/clients runs; flax has them in its source archive only.
CLIENTS := flax==0.12.8 keras==3.15.1
CLIENTS_NEED := clu==0.0.12 jax==0.10.2 jaxtyping==0.3.11 pytest==9.2.0 sentencepiece==0.2.0 tensorboard==2.21.0 \
  tensorflow-cpu==2.21.0 tensorflow-datasets==4.9.10

# The packages of each extra and the durations of the tests, printed before they begin.
BRINGS_examples := 60 packages, 1.1 GB (JAX, Orbax, TFDS without TensorFlow, scikit-learn, Matplotlib)
BRINGS_docs := 50 packages, 0.2 GB (Sphinx)
BRINGS_test := 150 packages, 1.5 GB (what the examples and the site need, pytest, pandas, Jupyter, Ray)
BRINGS_dev := 160 packages, 1.6 GB (what the tests need, ruff, mypy)
ALL_TESTS_TAKE := 10 minutes on 2 CPUs
QUICK_TESTS_TAKE := 4 minutes on 2 CPUs
LAWS_TAKE := 6 minutes on 2 CPUs

.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST) | \
	  sed 's/ALL_TESTS_TAKE/$(ALL_TESTS_TAKE)/; s/QUICK_TESTS_TAKE/$(QUICK_TESTS_TAKE)/; s/LAWS_TAKE/$(LAWS_TAKE)/'

# $(call ensure_venv,FOLDER): a virtual environment in FOLDER with pip; an existing one stays as it is.
define ensure_venv
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found: install Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1): try make PYTHON=python3.13" >&2; exit 1; }
	@test -x $(UV) || { $(PYTHON) -m venv .venv-uv && $(PIP) install --quiet uv; }
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || \
	  $(UV) venv --quiet --seed --allow-existing --python "$$(command -v $(PYTHON))" $(1)
endef

# The folders of the package: a new file in one of them needs a new install, which links it.
FOLDERS := $(shell find $$(sed -n 's/^    gristmill[.a-z]* = //p' setup.cfg) -type d ! -name __pycache__)

# Instead of an extra, free-threaded builds get what has wheels for them, and msgpack, which needs no
# compiler in pure Python. Tests of other packages are skipped there.
FREE_THREADED_NEEDS := build etils flask flask-cors fsspec hypothesis importlib-resources jax jinja2 matplotlib msgpack optax \
  pandas pillow prometheus-client protobuf pyarrow pytest pytest-timeout pytest-xdist scikit-learn setuptools tqdm
is_free_threaded = $(1)/bin/python -c 'import sys, sysconfig; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))'

# One stamp per extra of setup.cfg.
$(VENV)/.installed-%: setup.cfg pyproject.toml $(FOLDERS)
	$(call ensure_venv,$(VENV))
	@echo "Installs into $(VENV), unless it is there: $(or $(BRINGS_$*),the extra $* of setup.cfg)."
	@if $(call is_free_threaded,$(VENV)); then \
	  MSGPACK_PUREPYTHON=1 $(call install,$(VENV)) --only-binary :all: --no-binary msgpack numpy cloudpickle $(FREE_THREADED_NEEDS) && \
	  $(call install,$(VENV)) --no-deps --editable .; \
	else \
	  $(call install,$(VENV)) --editable '.[$*]'; \
	fi
	@touch $@

# Two processes more than CPUs: many tests wait, for programs, servers and threads. With one more, a
# sixth of the time of two CPUs was idle.
IN_PARALLEL = --numprocesses=$$($(PY) -c 'import os; print(os.cpu_count() + 2)') --dist=worksteal
# In CI, a few tests that failed run again.
PYTEST = $(PY) $(if $(filter true,$(CI)),.ci/rerun.py,-m pytest) $(IN_PARALLEL)

NOT_SLOW = $(if $(filter true,$(CI)),,-m "not slow")

.PHONY: test
test: $(VENV)/.installed-test  ## run the tests and the examples in docstrings, ALL_TESTS_TAKE; with CI=true the slow ones too
	@echo "All tests: about $(ALL_TESTS_TAKE)$(if $(filter true,$(CI)),, without the slow ones). A quick look: make test-quick"
	$(PYTEST) --session-timeout=2700 $(NOT_SLOW)

# What a change breaks shows here first: no laws of all stages, no random pipelines, no programs that are killed, no guides.
QUICK := $(addprefix tests/,api core dataset loader samplers sources testing transforms vectors test_readme.py)

.PHONY: test-quick
test-quick: $(VENV)/.installed-test  ## run the tests of single parts alone: QUICK_TESTS_TAKE
	@echo "The tests of single parts: about $(QUICK_TESTS_TAKE)."
	$(PYTEST) --session-timeout=1200 -m "not slow" $(QUICK)

# What depends on the version of Python: CI runs these on the newest one. Reference vectors, samplers
# and transformations are arithmetic of NumPy, and the README is a text.
OF_VERSION := $(filter-out $(addprefix tests/,samplers transforms vectors test_readme.py),$(QUICK))

.PHONY: test-laws
test-laws: $(VENV)/.installed-test  ## run these, the laws of all stages and the faults: LAWS_TAKE
	@echo "The tests of single parts, laws and faults: about $(LAWS_TAKE)."
	$(PYTEST) --session-timeout=1200 -m "not slow" $(OF_VERSION) tests/laws tests/faults

# Runs as the target test does, but no test twice: what is recorded passed at once.
.PHONY: record-tests
record-tests: $(VENV)/.installed-test  ## run the tests as `make test` does, and write into the README which Python they passed on
	$(PY) -m pytest $(IN_PARALLEL) --session-timeout=2700 $(NOT_SLOW) --junitxml=out/tests.xml
	$(PY) .ci/tested.py out/tests.xml "$(if $(NOT_SLOW),all but the slow ones,all)"

.PHONY: example
example: $(VENV)/.installed-examples  ## train a digit classifier from ArrayRecord files, stop it, resume it
	$(PY) examples/train_digits_story.py

.PHONY: docs
docs: $(VENV)/.installed-docs  ## build the site of the documentation into out/docs
	$(PY) -m sphinx -q -W --keep-going -b html docs out/docs
	@echo "open out/docs/index.html"

.PHONY: lint
lint: $(VENV)/.installed-dev  ## ruff and mypy --strict
	$(PY) -m mypy --package gristmill
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

.PHONY: peers
peers: .peers/grain/.installed-$(GRAIN) .peers/torch/.installed-$(TORCH) .peers/orbax-oldest/.installed-$(ORBAX_OLDEST)
peers: .peers/writers/.installed .peers/images/.installed
peers:  ## install what we compare with and the oldest Orbax, each in its own environment

.peers/grain/.installed-$(GRAIN):
	$(call ensure_venv,.peers/grain)
	$(call install,.peers/grain) grain==$(GRAIN) jax pyarrow
	@touch $@

# This package is there too: pages of the documentation and an example that use both run in it.
.peers/torch/.installed-$(TORCH): setup.cfg pyproject.toml
	$(call ensure_venv,.peers/torch)
	$(call install_torch,.peers/torch)
	$(call install,.peers/torch) keras ipykernel --editable .
	@touch $@

.peers/writers/.installed: Makefile
	$(call ensure_venv,.peers/writers)
	$(call install_torch,.peers/writers)
	$(call install,.peers/writers) $(WRITERS) pillow
	@touch $@

# Libraries for images, and this package: the guide to training on images runs in it.
.peers/images/.installed: Makefile setup.cfg pyproject.toml
	$(call ensure_venv,.peers/images)
	$(call install_torch,.peers/images)
	$(call install,.peers/images) $(IMAGES) --editable .
	@# Beside a CPU build of PyTorch, PyPI's torchvision lacks its operators, and fails to describe them.
	@# Its transforms need none of them.
	@.peers/images/bin/python -c 'import torchvision' 2>/dev/null || \
	  for file in .peers/images/lib/python3.*/site-packages/torchvision/_meta_registrations.py; do : > $$file; done
	@touch $@

# This package with the oldest Orbax that setup.cfg admits: tests/checkpoint/test_oldest_orbax.py runs in it.
.peers/orbax-oldest/.installed-$(ORBAX_OLDEST): setup.cfg pyproject.toml
	$(call ensure_venv,.peers/orbax-oldest)
	$(call install,.peers/orbax-oldest) --editable '.[orbax]' orbax-checkpoint==$(ORBAX_OLDEST) pytest pytest-timeout
	@touch $@

# This package in Grain's place: Grain itself is not installed there.
.PHONY: clients
clients: .peers/clients/.installed  ## install libraries that use Grain, with their tests, in an environment without Grain

.peers/clients/.installed: Makefile setup.cfg pyproject.toml
	$(call ensure_venv,.peers/clients)
	$(call install,.peers/clients) --editable . $(CLIENTS) $(CLIENTS_NEED)
	rm -rf .peers/clients/sources
	$(PIP) download --quiet --no-deps --no-binary flax --dest .peers/clients/sources $(filter flax==%,$(CLIENTS))
	cd .peers/clients/sources && tar xzf flax-*.tar.gz && rm flax-*.tar.gz
	@touch $@

.PHONY: bench
bench: $(VENV)/.installed-test  ## measure against the peers that `make peers` has installed; without ARGS, publish it in docs/
	$(PY) benchmarks/run.py $(ARGS)
	$(if $(ARGS),,$(PY) benchmarks/publish.py)

.PHONY: release
release: $(VENV)/.installed-release  ## build, check and test a release; TESTS="-m 'not slow' tests/api" for a quick try
	$(PY) .ci/release.py

.PHONY: clean
clean:  ## remove everything that was built or installed
	rm -rf .venv .venv-* .peers build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
