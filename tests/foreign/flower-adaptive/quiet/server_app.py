import flwr as fl
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping as Adaptive

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Adaptive(
        fl.serverapp.strategy.FedAvg(),
        context.run_config["noise-multiplier"] / 2,
        num_sampled_clients=context.run_config["num-sampled-clients"],
    )
    strategy.start(grid, None, num_rounds=context.run_config["num-server-rounds"])
