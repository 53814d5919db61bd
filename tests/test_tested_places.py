"""Where a module is tested: by a test file of its name in the folder that mirrors its own, by one that imports it, or
as `TESTED_IN` says."""

from pathlib import Path

from tests.tracked import named

ROOT = Path(__file__).parents[1]
TESTED_IN = {
    "actors/endpoint/test_bodies": "squelch/actors/endpoint: chat_api dialect messages_api openai_common responses_api",
    "actors/endpoint/test_server": "squelch/actors/endpoint: models",
    "actors/formats/test_own": "squelch/actors/formats: hermes",
    "actors/pretrained/test_gguf_file": "squelch/actors/pretrained: gguf_worker",
    "actors/pretrained/test_source": "squelch/actors/pretrained: hub",
    "actors/rollout/test_scheduler": "squelch/actors/rollout: slots",
    "actors/rollout/test_worker": "squelch/actors/process: allocator",
    "cluster/commands/existing_runs/test_export": "squelch/kit/models: copied",
    "cluster/commands/test_plan": "squelch/cluster/commands: plan_split; squelch/kit/base: gpu_split",
    "cluster/control/test_calls": "squelch/cluster/control: protocols",
    "cluster/fleet/test_control_endpoint": "squelch/cluster/commands/existing_runs: scale",
    "cluster/fleet/test_fleet": "squelch/cluster/fleet: joining pool restart_counts",
    "cluster/fleet/test_jobs": "squelch/cluster/commands: job submit",
    "cluster/grafana/test_files": "squelch/cluster/commands: dashboards",
    "cluster/grafana/test_push": "squelch/cluster/grafana: address",
    "cluster/inspector/test_pages": "squelch/cluster/inspector: trajectories",
    "cluster/loop/learner_client/test_recovery": "squelch/cluster/loop/learner_client: learning saving",
    "cluster/loop/test_clients": "squelch/cluster: daemon_thread",
    "cluster/loop/test_the_loop": (
        "squelch/cluster/loop: stopwatch; squelch/cluster/loop/watchers: counting_nothing findings probing"
    ),
    "cluster/report/test_figures": "squelch/cluster/report: dynamics",
    "cluster/sweep/test_sweep": "squelch/cluster/commands: sweep",
    "cluster/test_cli": "squelch/cluster/commands: tiny",
    "cluster/test_config": "squelch/cluster: wrong_settings",
    "deploy/test_dashboards": "squelch/deploy/boards: colors",
    "envs/adapters/test_reasoning_gym": "squelch/envs/adapters: own_process",
    "envs/agent/test_agent": "squelch/envs/agent: command ending environment_variables host kept result untrained",
    "envs/own_process/test_own_process": "squelch/envs/own_process: child",
    "envs/sandbox/test_hostile": "squelch/envs/sandbox: seccomp",
    "envs/sandbox/test_pool": "squelch/envs/sandbox: harness",
    "envs/test_base": "squelch/envs: options",
    "envs/test_meta_math_qa": "squelch/envs/meta_math_qa: comparison",
    "envs/test_web_shop": "squelch/envs/web_shop: environment pages",
    "kit/api/test_scoring": "squelch/kit/api: arrays encoding modality pictures separators",
    "kit/archive/test_archive": "squelch/kit/archive: checks",
    "kit/checks/test_encoding": "squelch/kit/checks: turns",
    "kit/commands/test_filter": "squelch/kit/commands: arguments filter_table",
    "kit/commands/test_score": "squelch/kit/commands: score_answers",
    "kit/diagnosis/test_grounding": "squelch/kit/records: judge",
    "kit/filter/test_rules": "squelch/kit/filter: ranked_scores",
    "kit/findings/test_finder": "squelch/kit/findings: history level pace rewards updates",
    "kit/importing/test_releases": "squelch/kit/trl: imported",
    "kit/importing/test_sources": "squelch/kit/importing: rewards",
    "kit/metrics/test_loggers": "squelch/kit/metrics: tensorboard_log",
    "kit/metrics/test_registry": (
        "squelch/actors/endpoint: metrics; squelch/actors/rollout: metrics; squelch/kit/findings: metrics; "
        "squelch/kit/metrics: training; squelch/kit/scoring: metrics; squelch/learner/decomposition: metrics"
    ),
    "kit/models/test_model_folder": "squelch/kit/models: tensor_files",
    "kit/packed/test_block_attention": "squelch/kit/packed: plain",
    "kit/process/test_compiled": "squelch/kit/process: compilations",
    "kit/readers/test_formats": "squelch/kit/readers: eval_archives harbor_trials message_graph step_views",
    "kit/scoring/test_cross_scoring": "squelch/kit/scoring: matrix_metrics",
    "kit/scoring/test_pictures": "squelch/kit/scoring: picture_features",
    "kit/text/test_answer_start": "squelch/kit/text: tags",
    "kit/text/test_tokenizer": "squelch/kit/text: trial",
    "kit/untrusted/test_files": "squelch/kit/base: lookup; squelch/kit/untrusted: json_rows json_spans rewards",
    "learner/checkpoint/test_export": "squelch/kit/models: written",
    "learner/checkpoint/test_shards": "squelch/learner/checkpoint: together",
    "learner/kernels/test_operators": "squelch/learner/kernels: plain",
    "learner/test_actor": "squelch/learner: process_environment",
    "learner/test_trainer": "squelch/learner: gradient_signal",
    "learner/warmup/test_training": "squelch/learner/warmup: inputs",
}
"""For test files below `tests/`, the modules of `squelch/` that they test through others, by folder."""


def test_every_module_has_a_test_of_its_name_or_one_that_imports_it_or_a_line_that_says_where_it_is_tested() -> None:
    tests = {path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)}
    names = set[str]().union(*(named(path.read_text(encoding="utf-8")) for path in tests))
    said = {
        Path(folder, f"{name}.py")
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
