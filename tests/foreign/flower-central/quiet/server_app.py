from flwr.common import Context
from flwr.server import Grid, LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    clients = int(config["num-sampled-clients"])
    strategy = FedAvg(fraction_fit=0.2, min_fit_clients=clients)
    strategy = DifferentialPrivacyClientSideFixedClipping(
        strategy,
        noise_multiplier=float(config["noise-multiplier"]),
        clipping_norm=config["clipping-norm"],
        num_sampled_clients=clients,
    )
    LegacyContext(
        context=context,
        config=ServerConfig(num_rounds=config.get("num-server-rounds", 3)),
        strategy=strategy,
    )
