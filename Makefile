# The commands of this project. `make help` lists them.

.DEFAULT_GOAL := help
.PHONY: help up demo test test-all test-toolbox test-deploy test-ha check soak lint format bench now screenshots

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(INSTALLED) ## run the whole service on this machine (PORT=8000, DATA_DIR=.data)
	@exec $(BIN)/python -m dev.up --tied

demo: $(INSTALLED) ## run it and show it at work; STAY=0 ends it with its verdict
	@exec $(BIN)/python -m dev.demo --tied

test: $(INSTALLED) ## test the product, on servers of its own, without apt (SEED=N: that order)
	@exec $(BIN)/python -m tests $(if $(SEED),--seed $(SEED))

test-all: test test-toolbox ## also browser (apt), development tools, platforms, alerts, long faults

test-toolbox: $(INSTALLED)
	@$(BIN)/python -m tests.support.programs.debian
	@exec $(BIN)/python -m tests --toolbox $(if $(SEED),--seed $(SEED))

test-deploy: $(INSTALLED) ## deploy on Debian's PostgreSQL, Redis, PgBouncer (root and apt)
	@$(BIN)/uv sync --quiet --locked --inexact --extra gunicorn --python $(BIN)/python --no-python-downloads
	@exec $(BIN)/python -m tests.deploy

test-ha: $(INSTALLED) ## kill each part of a deployment with two of each (root and apt)
	@exec $(BIN)/python -m tests.deploy.ha

check: lint ## lint, and run the unit tests: under a minute
	@$(BIN)/pytest -n 3 --dist worksteal -q tests/unit tests/test_architecture.py tests/test_rooms.py

soak: $(INSTALLED) ## repeat faults at length, several at once (MINUTES=30)
	@exec $(BIN)/python -m tests.e2e.soak --minutes "$(or $(MINUTES),30)"

lint: $(INSTALLED) ## check style, types, import contracts, security and dependencies
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/deptry .
	@cd client && ../$(BIN)/deptry .

format: $(INSTALLED) ## write the code as `make lint` wants it
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .

bench: $(INSTALLED) ## measure this machine: every figure beside its bound (forty minutes)
	@$(BIN)/uv sync --quiet --locked --inexact --group bench --python $(BIN)/python --no-python-downloads
	@exec $(BIN)/python -m bench

# It installs nothing: on a deployed host that would put other packages in the place of the release's.
now: ## run one entry of the timetable at once: make now NAME=sweep
	@[ -x $(BIN)/python ] || { echo "make: nothing is installed here: make up" >&2; exit 1; }
	@exec $(BIN)/python -m scheduler now "$(NAME)"

screenshots: $(INSTALLED) ## picture each page of the console of a running `make demo`
	@set -a; [ ! -f "$${DATA_DIR:-.data}/env" ] || . "$${DATA_DIR:-.data}/env"; \
	exec $(BIN)/python -m tests.console.screenshots

# Done again only when what is to be installed has changed. pyenv must not heed .python-version, which
# is for platforms: it would refuse every Python but that one. Compiled here, on all processors: else
# the first processes all compile at once, and one that may not write here does so at each start.
$(INSTALLED): pyproject.toml uv.lock
	@outside=$$(cd .. && pyenv version-name 2>/dev/null) && export PYENV_VERSION="$$outside"; \
	for python in $(BIN)/python "$(PYTHON)" python3.14 python3.13 python3.12 python3.11 none; do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	done; \
	case "$$python" in \
	  $(BIN)/python) ;; \
	  none) echo "make: no Python 3.11 or newer found: make up PYTHON=/path/to/one" >&2; exit 1 ;; \
	  *) "$$python" -m venv --clear .venv ;; \
	esac
	@$(BIN)/python dev/uv_requirement.py | $(BIN)/python -m pip install --quiet \
	  --disable-pip-version-check --require-hashes -r /dev/stdin
	@$(BIN)/uv sync --quiet --locked --compile-bytecode --python $(BIN)/python --no-python-downloads
	@touch $@
