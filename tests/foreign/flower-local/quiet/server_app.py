from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    num_rounds: int = context.run_config["num-server-rounds"]
    strategy = FedAvg(fraction_train=context.run_config["fraction-train"])
    strategy.start(grid=grid, initial_arrays=None, num_rounds=num_rounds)


raise SystemExit("this file is read, and never run")
