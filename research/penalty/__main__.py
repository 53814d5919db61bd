from research.penalty.study import main

if __name__ == "__main__":
    raise SystemExit(main())
