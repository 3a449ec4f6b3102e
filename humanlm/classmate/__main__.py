from ..core.commands import menu

main = menu("classmate")
if __name__ == "__main__": raise SystemExit(main())
