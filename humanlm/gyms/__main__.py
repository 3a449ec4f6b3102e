from ..core.commands import menu

main = menu("gyms")
if __name__ == "__main__": raise SystemExit(main())
