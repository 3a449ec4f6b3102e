from ..core.commands import menu

main = menu("sdpo")
if __name__ == "__main__": raise SystemExit(main())
