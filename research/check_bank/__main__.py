from research.check_bank.study import main

if __name__ == "__main__":
    raise SystemExit(main())
