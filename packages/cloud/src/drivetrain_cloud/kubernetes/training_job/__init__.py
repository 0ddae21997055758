"""TrainingJobs of elastic Horovod, as ElasticJobs; ScaleIn and ScaleOut, as their size.

The kinds are those of `kai.alibabacloud.com/v1alpha1`, so that manifests stay as they are.
Pods are made and deleted by nobody but the reconciliation of the ElasticJob.
"""
