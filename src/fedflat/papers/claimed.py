"""The main claims of the three papers."""

from __future__ import annotations

from fedflat.papers.claims import Claim

FEDSOL = (
    Claim("FedSOL is best on CIFAR-10 at α = 0.1", "fedsol/table2", "cifar10 lda-0.1", "fedsol"),
    Claim("FedSOL beats FedAvg in all 18 settings", "fedsol/table2", "*", "fedsol", ("fedavg",)),
    Claim("FedSOL is best on CIFAR-10 at every α, if narrowly", "fedsol/table2", "cifar10 lda-*", "fedsol"),
    Claim("FedSAM is worse than FedAvg on CIFAR-10 under LDA", "fedsol/table2", "cifar10 lda-*", "fedavg", ("fedsam",)),
    Claim("Projecting KL gradients is worse than FedAvg", "fedsol/table1", "cifar10", "none", ("kl-projection",)),
    Claim("Projection is worse than the L2 loss itself", "fedsol/table1", "cifar10", "l2-base", ("l2-projection",)),
    Claim("Projection is worse than the KL loss itself", "fedsol/table1", "cifar10", "kl-base", ("kl-projection",)),
    Claim("FedSOL beats FedAvg with every architecture", "fedsol/table3", "*", "fedsol", ("fedavg",)),
    Claim("Every proximal method is better as perturbation", "fedsol/table4", "*", "combined", ("base",)),
    Claim("The head is as good as the whole model, to 1.5", "fedsol/table5", "*", "head", ("all",), margin=-1.5),
    Claim("FedSOL-FT is best of what is fine-tuned", "fedsol/table9", "*", "fedsol"),
    Claim("FedSOL is best on CIFAR-100 and ImageNet-100", "fedsol/table10", "*", "fedsol"),
    Claim("No other use of the two losses is as good", "fedsol/table12", "*", "A1"),
    Claim("FedSOL is above FedAvg for all learning factors", "fedsol/figure3", "*", "fedsol", ("fedavg",)),
    Claim("Adaptive strength is better than fixed", "fedsol/figure4", "*", "adaptive", ("fixed",)),
    Claim("FedSOL keeps local models closer", "fedsol/figure5", "*", "fedsol", ("fedavg",)),
    Claim("FedSOL's local models forget less", "fedsol/figure6", "forgetting.after", "fedsol", ("fedavg",)),
    Claim("FedSOL has the smallest λ1/λ5", "fedsol/figure7", "ratio", "fedsol"),
)


FEDGF = (
    Claim("FedGF is best at α = 0", "fedgf/table1", "alpha-0", "fedgf"),
    Claim("FedGF beats FedSAM at α = 0", "fedgf/table1", "alpha-0", "fedgf", ("fedsam",)),
    Claim("FedGF is best on CIFAR-10 at α = 0.05", "fedgf/table1", "cifar10 alpha-0.05", "fedgf"),
    Claim("FedGF has the lowest LPF at α = 0", "fedgf/table2", "cifar100 alpha-0 lpf", "fedgf"),
    Claim("FedGF has the lowest λ1 at α = 0", "fedgf/table2", "cifar100 alpha-0 lambda1", "fedgf"),
    Claim("the same on CIFAR-10, not in the paper", "fedgf/table2", "cifar10 alpha-0 lambda1", "fedgf"),
    Claim("FedGF has less discrepancy than FedSAM", "fedgf/table2", "alpha-0 discrepancy", "fedgf", ("fedsam",)),
    Claim("FedGF needs fewer transmissions than FedSMOO", "fedgf/table4", "*", "fedgf", ("fedsmoo",)),
    Claim("Adaptive c is better than any constant", "fedgf/table5", "*", "fedgf"),
    Claim("FedGF converges fastest at α = 0", "fedgf/figure4", "*", "fedgf"),
)


SGD = ("fedavg", "fedprox", "feddyn", "scaffold")


SAM = ("fedsam", "feddyn-sam", "fedspeed", "fedgamma", "fedsmoo")


SLOWER = ("fedavg", "fedprox", "fedsam", "feddyn-sam", "fedspeed")


FEDGLOSS = (
    Claim("FedGloSS is best on CIFAR-10 at α = 0", "fedgloss/table3", "cnn cifar10 alpha-0", "fedgloss"),
    Claim("FedGloSS beats every method with SAM", "fedgloss/table3", "*", "fedgloss", SAM),
    Claim("FedGloSS with SGD beats every method with SGD", "fedgloss/table3", "*", "fedgloss-sgd", SGD),
    Claim("FedGloSS is best on Landmarks", "fedgloss/table4", "*", "fedgloss"),
    Claim("FedGloSS is as good as NaiveFedGloSS, to 1", "fedgloss/table6", "last100", "fedgloss", margin=-1.0),
    Claim("Flatness adds to consistency", "fedgloss/table7", "*", "fedgloss", ("feddyn-sam", "fedsam")),
    Claim("FedGloSS reaches the flattest minima", "fedgloss/table8", "*", "fedgloss"),
    Claim("SAM on the clients makes flatter minima", "fedgloss/table8", "*", "fedsam", ("fedavg",)),
    Claim("FedGloSS keeps the model shorter", "fedgloss/figure8", "*", "fedgloss", ("feddyn-sam", "fedsmoo")),
    Claim("FedGloSS's local models are flattest", "fedgloss/table1", "lambda-global", "fedgloss"),
    Claim("FedGloSS needs fewer rounds than most", "fedgloss/table10", "*", "fedgloss", SLOWER),
)


CLAIMS = (*FEDSOL, *FEDGF, *FEDGLOSS)
