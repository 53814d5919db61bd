"""Where a module is tested: by a test file of its name in the folder that mirrors its own, by one that imports it, or
as `TESTED_IN` says."""

from pathlib import Path

from tests.tracked import named

ROOT = Path(__file__).parents[1]
TESTED_IN = {
    "actors/endpoint/test_bodies": "actors/endpoint: chat_api dialect messages_api openai_common responses_api",
    "actors/endpoint/test_server": "actors/endpoint: models",
    "actors/formats/test_own": "actors/formats: hermes",
    "actors/pretrained/test_gguf_file": "actors/pretrained: gguf_worker",
    "actors/pretrained/test_source": "actors/pretrained: hub",
    "actors/rollout/test_scheduler": "actors/rollout: slots",
    "actors/rollout/test_worker": "actors/process: allocator",
    "cluster/commands/existing_runs/test_export": "kit/models: copied",
    "cluster/commands/test_plan": "cluster/commands: plan_split",
    "cluster/control/test_calls": "cluster/control: protocols",
    "cluster/fleet/test_control_endpoint": "cluster/commands/existing_runs: scale",
    "cluster/fleet/test_fleet": "cluster/fleet: joining pool restart_counts",
    "cluster/fleet/test_jobs": "cluster/commands: job submit",
    "cluster/grafana/test_files": "cluster/commands: dashboards",
    "cluster/grafana/test_push": "cluster/grafana: address",
    "cluster/inspector/test_pages": "cluster/inspector: trajectories",
    "cluster/loop/learner_client/test_recovery": "cluster/loop/learner_client: learning saving",
    "cluster/loop/test_clients": "cluster: daemon_thread",
    "cluster/loop/test_the_loop": "cluster/loop: stopwatch; cluster/loop/watchers: counting_nothing findings probing",
    "cluster/report/test_figures": "cluster/report: dynamics",
    "cluster/sweep/test_sweep": "cluster/commands: sweep",
    "cluster/test_cli": "cluster/commands: tiny",
    "cluster/test_config": "cluster: wrong_settings",
    "deploy/test_dashboards": "deploy/boards: colors",
    "e2e/test_whole_run": "cluster/commands/existing_runs: eval",
    "envs/adapters/test_reasoning_gym": "envs/adapters: own_process",
    "envs/agent/test_agent": "envs/agent: command ending environment_variables host kept result untrained",
    "envs/own_process/test_own_process": "envs/own_process: child",
    "envs/sandbox/test_hostile": "envs/sandbox: seccomp",
    "envs/sandbox/test_pool": "envs/sandbox: harness launcher",
    "envs/test_base": "envs: options",
    "envs/test_meta_math_qa": "envs/meta_math_qa: comparison",
    "envs/test_web_shop": "envs/web_shop: environment pages",
    "kit/api/test_scoring": "kit/api: arrays encoding modality pictures separators",
    "kit/archive/test_archive": "kit/archive: checks",
    "kit/checks/test_encoding": "kit/checks: turns",
    "kit/checks/test_planted": "kit/checks: words",
    "kit/commands/test_filter": "kit/commands: arguments filter_table",
    "kit/commands/test_score": "kit/commands: score_answers",
    "kit/diagnosis/test_grounding": "kit/records: judge",
    "kit/filter/test_rules": "kit/filter: ranked_scores",
    "kit/findings/test_finder": "kit/findings: history level pace rewards updates",
    "kit/importing/test_releases": "kit/trl: imported",
    "kit/importing/test_sources": "kit/importing: rewards",
    "kit/metrics/test_exporter": "kit/metrics: served",
    "kit/metrics/test_loggers": "kit/metrics: tensorboard_log",
    "kit/metrics/test_registry": (
        "actors/endpoint: metrics; actors/rollout: metrics; kit/findings: metrics; kit/metrics: training; "
        "kit/scoring: metrics; learner/decomposition: metrics"
    ),
    "kit/models/test_model_folder": "kit/models: tensor_files",
    "kit/packed/test_block_attention": "kit/packed: plain",
    "kit/process/test_compiled": "kit/process: compilations",
    "kit/readers/test_formats": "kit/readers: eval_archives harbor_trials message_graph step_views",
    "kit/scoring/test_cross_scoring": "kit/scoring: matrix_metrics",
    "kit/scoring/test_pictures": "kit/scoring: picture_features",
    "kit/text/test_answer_start": "kit/text: tags",
    "kit/text/test_tokenizer": "kit/text: trial",
    "kit/untrusted/test_files": "kit/base: lookup; kit/untrusted: json_rows json_spans rewards",
    "learner/checkpoint/test_shards": "learner/checkpoint: together",
    "learner/kernels/test_operators": "learner/kernels: plain",
    "learner/test_actor": "learner: process_environment",
    "learner/test_trainer": "learner: gradient_signal",
    "learner/warmup/test_training": "learner/warmup: inputs",
}
"""For test files below `tests/`, the modules of `squelch/` that they test through others, by folder."""


def test_every_module_has_a_test_of_its_name_or_one_that_imports_it_or_a_line_that_says_where_it_is_tested() -> None:
    tests = {path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)}
    names = set[str]().union(*(named(path.read_text(encoding="utf-8")) for path in tests))
    said = {
        Path("squelch", folder, f"{name}.py")
        for modules in TESTED_IN.values()
        for folder, names in (line.split(": ") for line in modules.split("; "))
        for name in names.split()
    }
    assert [test for test in TESTED_IN if ROOT / "tests" / f"{test}.py" not in tests] == []
    modules = [path.relative_to(ROOT) for path in (ROOT / "squelch").rglob("*.py") if path.name != "__init__.py"]
    untested = {
        module
        for module in modules
        if ROOT / "tests" / Path(*module.parts[1:-1]) / f"test_{module.name}" not in tests
        and ".".join(module.with_suffix("").parts) not in names
    }
    assert {*map(str, untested)} == {*map(str, said)}
