from research.findings_runs.study import main

if __name__ == "__main__":
    raise SystemExit(main())
